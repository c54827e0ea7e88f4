"""The open ends of a job's topics, as one coordinator instance holds them."""

from __future__ import annotations

from dataclasses import dataclass

from ..transport.ports import FencedLog, Writer
from .side_writer import SideWriter


@dataclass
class Logs:
    """What a coordinator writes with."""

    checkpoints: FencedLog
    events: Writer
    side: SideWriter
    events_life: int = 0
    """Which writer of events this is; what an earlier one could not append is known."""
    events_failed: int = -1
    """The newest life in which something was not certainly taken."""

    def replace_events(self, writer: Writer) -> None:
        self.events.close(0.0)
        self.events = writer
        self.events_life += 1

    def events_stand(self, timeout_s: float) -> bool:
        """Whether the broker has certainly taken all that the writer of events was given; waits for that so long."""
        return self.events.flush(timeout_s) and self.events_failed < self.events_life
