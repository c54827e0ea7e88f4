"""What is redrawn in place on a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.live import Live

from .console import Console


class Redrawn:
    """A context manager: within it ``_live`` is redrawn, None where the console is no terminal."""

    def __init__(self, console: Console, **live: Any) -> None:
        """``live``: options of :class:`rich.live.Live`."""
        self._console = console
        self._live = Live(console=console.rich, transient=False, **live) if console.live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
