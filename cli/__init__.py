"""The command line: `penstock --help`."""

from __future__ import annotations

from collections.abc import Sequence

if __name__ != "penstock.cli":
    raise ImportError(f"import this package as penstock.cli, not as {__name__}")

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (:mod:`penstock.cli.exits`); the arguments are sys.argv's."""
    from .app import run  # not at the top: Spark's workers import this package for the demo's tasks alone

    return run(arguments)
