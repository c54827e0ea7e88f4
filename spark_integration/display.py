"""Show what changes: one table in a notebook, lines elsewhere."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from ..schemas.status import JobStatus


def displayed() -> Callable[[JobStatus], None]:
    """Return what shows a status: in place of the one before in a notebook, else as a line where it differs."""
    show = _in_a_notebook()
    return show if show is not None else _in_lines()


def _in_lines() -> Callable[[JobStatus], None]:
    last = ""

    def show(status: JobStatus) -> None:
        nonlocal last
        if (line := repr(status)) != last:
            print(line, flush=True)
            last = line

    return show


def _in_a_notebook() -> Callable[[JobStatus], None] | None:
    """None where this is no notebook: then IPython was never imported, or has no kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display = importlib.import_module("IPython.display").display  # not among our dependencies
    shown: Any = None

    def show(status: JobStatus) -> None:
        nonlocal shown
        if shown is None:
            shown = display(status, display_id=True)
        else:
            shown.update(status)

    return show
