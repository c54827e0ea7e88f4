"""The command line: `penstock --help`."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence

if __name__ != "penstock.cli":
    raise ImportError(f"import this package as penstock.cli, not as {__name__}")

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (:mod:`penstock.cli.exits`); the arguments are sys.argv's."""
    if (foreign := foreign_distribution()) is not None:
        print(f"penstock: {foreign}", file=sys.stderr)
    from .app import run  # not at the top: Spark's workers import this package for the demo's tasks alone

    return run(arguments)


def foreign_distribution() -> str | None:
    """Say that the other project's distribution is installed, which has the same import name; None where it is not."""
    try:
        version = importlib.metadata.version("penstock")
    except importlib.metadata.PackageNotFoundError:
        return None
    return (
        f"the distribution penstock {version} is another project with the same import name, and may have overwritten"
        " files of penstock-spark: pip uninstall penstock, then pip install --force-reinstall --no-deps penstock-spark"
    )
