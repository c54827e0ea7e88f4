"""`penstock broker start|stop|status`: the embedded Kafka that outlives the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..broker import DetachedBroker, detached_status, start_detached, stop_detached
from ..schemas.errors import TransportError
from ..transport.kafka import KafkaTransport
from .connect import JsonOption
from .console import Console
from .exits import NoBrokerKnown

app = typer.Typer(
    help="Start and stop the embedded Kafka broker, a real one, on this machine.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def start(
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Its port; else the one of last time, or a free one.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where it keeps its data; else in the user's data folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start it, or find the one that runs; other terminals find it by themselves."""
    console = Console(as_json=as_json)
    running = start_detached(data_dir, port, progress=console.say)
    _tell(console, running)


@app.command()
def stop(as_json: JsonOption = False) -> None:
    """Stop it; its data stay."""
    console = Console(as_json=as_json)
    stopped = stop_detached()
    if as_json:
        console.data({"stopped": stopped is not None, "broker": None if stopped is None else _plain(stopped)})
    elif stopped is None:
        console.show("no broker was running")
    else:
        console.show(f"stopped the broker at {stopped.bootstrap}; its data stay in {stopped.data_dir}")


@app.command()
def status(as_json: JsonOption = False) -> None:
    """Where it is; exit code 3 where none runs, or where it does not answer."""
    console = Console(as_json=as_json)
    running = detached_status()
    if running is None:
        if as_json:
            console.data({"running": False})
        raise NoBrokerKnown("no embedded broker runs: penstock broker start")
    transport = KafkaTransport(running.bootstrap)
    try:
        answer = transport.check(10.0)
    except TransportError:
        if as_json:
            console.data({"running": True, "answers": False, **_plain(running)})
        raise
    finally:
        transport.close()
    if as_json:
        console.data({"running": True, "answers": True, **_plain(running)})
    else:
        console.show(f"{answer}; process {running.pid}, data in {running.data_dir}")


def _tell(console: Console, running: DetachedBroker) -> None:
    if console.as_json:
        console.data(_plain(running))
    else:
        console.show(f"Kafka at {running.bootstrap}, process {running.pid}, data in {running.data_dir}")


def _plain(running: DetachedBroker) -> dict[str, object]:
    return {"bootstrap": running.bootstrap, "pid": running.pid, "data_dir": str(running.data_dir)}
