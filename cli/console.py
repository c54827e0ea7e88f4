"""Where output goes: data to stdout; with --json exactly one JSON object there, and everything else to stderr.

Everything that a command prints goes through here. Texts come from topics and job files, so whoever writes there could
steer the terminal: control characters are shown, not sent.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import Any, NoReturn, TextIO

import rich.console
from rich.markup import escape
from rich.segment import Segment

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""All but tabs and line ends; with those that turn the direction of a text around."""


def visible(text: str) -> str:
    """Return the text with control characters as escapes: an ESC becomes ``\\x1b``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def print_text(text: object, file: TextIO | None = None) -> None:
    """Print a line, to stdout unless ``file`` is given."""
    print(visible(str(text)), file=file, flush=True)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return JSON without control characters, whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _Rich(rich.console.Console):
    """A console of rich's that shows control characters in texts, and leaves a closed pipe to its caller."""

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class Console:
    """Says things to people, in lines or as tables; hands data to programs."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._stdout = sys.stdout
        # Tables keep their columns where there is no terminal to fit them to.
        self.rich = _Rich(stderr=as_json, highlight=False, soft_wrap=False)
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
        print(json_text(value, indent), file=self._stdout, flush=True)

    def stdout_kept(self) -> AbstractContextManager[object]:
        """With --json, what users' coordinators print meanwhile goes to stderr: stdout has one JSON object."""
        return redirect_stdout(sys.stderr) if self.as_json else nullcontext()
