"""The parts of the benchmark; each runs in a process of its own, with a broker of its own, and within a bound."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

from penstock.broker import EmbeddedBroker

from .figures import Figure, Setting


@dataclass(frozen=True)
class Part:
    """A module of this package with a function ``figures(setting: Setting) -> Iterable[Figure]``."""

    module: str
    bound_s: float
    """It is ended, with all its processes, when it takes longer."""


PARTS = {
    "events": Part("events", 300),
    "latency": Part("latency", 120),
    "checkpoints": Part("checkpoints", 600),
    "loaded-checkpoints": Part("loaded_checkpoints", 180),
    "held": Part("held", 180),
    "memory": Part("memory", 300),
    "channels": Part("data_channels", 300),
    "alignment": Part("alignment", 180),
    "idle": Part("idle", 240),
    "growth": Part("growth", 900),
    "recovery": Part("recovery", 120),
    "takeover": Part("takeover", 240),
    "recovery-on-spark": Part("recovery_on_spark", 240),
    "splits": Part("splits", 600),
    "streaming": Part("streaming", 600),
    "kafka-source": Part("kafka_source", 600),
    "tables": Part("tables", 600),
}
"""In the order in which they run and are told."""


@dataclass(frozen=True)
class Wish:
    """What the command line says about every part."""

    repeats: int = 3
    quick: bool = False
    kafka_jars: str | None = None


class PartFailed(Exception):
    """A part raised, broke off or took too long; the text says what."""


@dataclass(frozen=True)
class PartEnded:
    """A part has measured everything."""


Said: TypeAlias = "str | Figure | PartEnded | PartFailed"


def figures_of(part: Part, wish: Wish, say: Callable[[str], None]) -> Iterator[Figure]:
    """Yield each figure of the part as it is measured. Raises PartFailed; none of its processes is left behind."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield from _figures_of(part, wish, say, folder)


def _figures_of(part: Part, wish: Wish, say: Callable[[str], None], folder: str) -> Iterator[Figure]:
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_run, args=(part, wish, folder, its))
    process.start()
    its.close()
    deadline = time.monotonic() + part.bound_s
    try:
        while mine.poll(max(0.0, deadline - time.monotonic())):
            said: Said = mine.recv()
            match said:
                case Figure():
                    yield said
                case PartEnded():
                    return
                case PartFailed():
                    raise said
                case str():
                    say(said)
        raise PartFailed(f"no end within {part.bound_s:g} s")
    except EOFError:
        process.join(10)
        raise PartFailed(f"its process has ended with exit code {process.exitcode}") from None
    finally:
        mine.close()  # which ends it, at the latest now
        process.join(10)
        process.kill()


def _run(part: Part, wish: Wish, folder: str, pipe: Connection) -> None:
    os.setsid()
    tempfile.tempdir = folder
    threading.Thread(target=_die_with, args=(pipe,), name="parent", daemon=True).start()
    try:
        with EmbeddedBroker(f"{folder}/broker") as broker:
            setting = Setting(broker.bootstrap, broker.pid, wish.repeats, wish.quick, pipe.send, wish.kafka_jars)
            for figure in importlib.import_module(f"{__package__}.{part.module}").figures(setting):
                pipe.send(figure)
        ended: Said = PartEnded()
    except BaseException:
        ended = PartFailed(traceback.format_exc())
    pipe.send(ended)


def _die_with(pipe: Connection) -> None:
    """Ends this session of processes once nobody listens any more."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)
