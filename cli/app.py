"""`penstock`: the commands together, and what becomes of their errors."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from .. import __version__
from .commands import Commands
from .console import print_text
from .exits import Exit, exit_of, table

app = typer.Typer(
    name="penstock",
    cls=Commands,
    help="Operator coordinators for Spark: exactly-once events between one coordinator and many subtasks, over Kafka.",
    epilog="\b\nExit codes:\n" + table(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

_NO_LOG = logging.NullHandler()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where errors come from, and the library's log.")] = False,
) -> None:
    """Operator coordinators for Spark: exactly-once events between one coordinator and many subtasks, over Kafka."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; every error becomes one line on stderr and an exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in options or os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0")
    if "--debug" in options:  # wherever it stands
        given.remove("--debug")
    if debug:
        log_format = "%(asctime)s %(levelname)s %(name)s %(message)s"
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=log_format)
        logging.getLogger("penstock").setLevel(logging.INFO)
    else:  # a library's log is for those who ask for it; what matters is shown by the commands
        logging.getLogger("penstock").addHandler(_NO_LOG)
    try:
        code = app(args=given, prog_name="penstock", standalone_mode=False)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else Exit.FAILED
    except BrokenPipeError:  # `penstock jobs | head`
        _give_up_stdout()
        return Exit.DONE
    except BaseException as error:
        if hasattr(error, "format_message"):  # typer's own, about the usage
            context = getattr(error, "ctx", None)
            command = "penstock" if context is None else context.command_path
            print_text(f"penstock: {error.format_message()} ({command} --help)", sys.stderr)
            return Exit.USAGE
        return _told(error, debug)
    if code == Exit.INTERRUPTED:  # typer has made an exit code of it
        return _told(KeyboardInterrupt(), debug)
    return code if isinstance(code, int) else Exit.DONE


def _give_up_stdout() -> None:
    """Nobody reads it any more, and the interpreter still flushes it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):  # it may be none with a descriptor
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _told(error: BaseException, debug: bool) -> int:
    if type(error).__name__ == "Abort":
        error = KeyboardInterrupt()
    code = exit_of(error)
    if debug:
        print_text("".join(traceback.format_exception(error)).rstrip(), sys.stderr)
    match code:
        case Exit.INTERRUPTED:
            print_text("penstock: interrupted", sys.stderr)
        case Exit.UNEXPECTED:
            where = "" if debug else " (unexpected; penstock --debug ... shows where)"
            print_text(f"penstock: {type(error).__name__}: {error}{where}", sys.stderr)
        case _:
            print_text(f"penstock: {error}", sys.stderr)
    return code
