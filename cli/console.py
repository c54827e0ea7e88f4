"""Where output goes: data to stdout; with --json exactly one JSON object there, and everything else to stderr."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import Any

import rich.console
from rich.markup import escape


class Console:
    """Says things to people, in lines or as tables; hands data to programs."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._stdout = sys.stdout
        # Tables keep their columns where there is no terminal to fit them to.
        self.rich = rich.console.Console(stderr=as_json, highlight=False, soft_wrap=False)
        if not self.rich.is_terminal:
            self.rich.width = 160
        self._lock = threading.Lock()
        self._last = ""

    @property
    def live(self) -> bool:
        """Whether a display may be redrawn in place."""
        return self.rich.is_terminal and not self.rich.is_dumb_terminal

    def say(self, text: str) -> None:
        """A line about what is going on; from any thread. A repeated line is left out."""
        with self._lock:
            if text != self._last:
                self._last = text
                self.rich.print(escape(text), style="dim" if self.live else None, soft_wrap=True)

    def show(self, what: Any) -> None:
        """A line or a rich table."""
        self.rich.print(escape(what) if isinstance(what, str) else what, soft_wrap=isinstance(what, str))

    def data(self, value: Any) -> None:
        """JSON on stdout."""
        indent = 2 if self._stdout.isatty() else None
        print(json.dumps(value, ensure_ascii=False, indent=indent), file=self._stdout, flush=True)

    def stdout_kept(self) -> AbstractContextManager[object]:
        """With --json, what users' coordinators print meanwhile goes to stderr: stdout has one JSON object."""
        return redirect_stdout(sys.stderr) if self.as_json else nullcontext()
