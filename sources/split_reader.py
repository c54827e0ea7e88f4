"""The subtask of a source: asks for splits, reads one after the other, and keeps the position in its state."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import Context, Finished, Idle, Progress, Subtask
from ..errors import ConfigurationError, PenstockError, SubtaskError
from .split import Split

TURN_RECORDS = 1_000
TURN_S = 0.02
"""After so many records, or seconds, events and checkpoints have their turn."""

_END: Any = object()

Deal = Callable[[Sequence[Any], int], Sequence[Any]]


class SplitReader:
    """Reads splits; one instance per attempt of a subtask. Write :meth:`read`, and override the rest where needed.

    Methods are called on the subtask's thread. What one raises fails the attempt: its successor begins with a new
    reader, and with each open split at the position of the last completed checkpoint.
    """

    context: Context
    """Of the subtask; set before :meth:`open`."""
    source: Any = None
    """The :class:`~penstock.sources.Files` whose ``read_by`` was given this reader, for its ``open(split)``."""

    def open(self) -> None:
        """Called first."""

    def read(self, split: Split, position: Any) -> Iterator[tuple[Any, Any]]:
        """Yield (position, record) for each record behind ``position``.

        A position is a JSON value that says where to go on after its record; None is the beginning. It must mean the
        same to every later call with this split. What a split holds must not change while the job runs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement read(split, position)")

    def handle(self, record: Any) -> None:
        """Do something with a record; as it stands here it goes to the next operators."""
        self.context.emit(record)

    def host(self) -> str:
        """Return the name of this machine, as ``Split.hosts`` has it."""
        return socket.gethostname()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return a state of the reader's own, a JSON value; positions are kept without it. None: there is none."""
        return None

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        """Take over what :meth:`snapshot_state` returned; not called where that was None."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete (see ``Subtask.notify_checkpoint_complete``)."""

    def close(self) -> None:
        """Called last, also after a failure."""


class ReadSplits(Subtask):
    """A subtask that reads the splits it is given with a reader."""

    def __init__(self, source: Any, make: Callable[[], SplitReader], prefetch: int) -> None:
        self._reader = make()
        if not isinstance(self._reader, SplitReader):
            raise ConfigurationError(
                f"read_by takes a penstock.sources.SplitReader, or a function that makes one, and {make!r} made a"
                f" {type(self._reader).__name__}"
            )
        self._reader.source = source
        self._slots = 1 + prefetch
        self._series = self._received = self._done = 0
        self._ended = False
        """No split comes any more."""
        self._open: deque[list[Any]] = deque()
        """[split, position] of each; the first is being read."""
        self._records: Iterator[tuple[Any, Any]] | None = None
        self._said: tuple[int, int] | None = None
        """What the coordinator was told last: splits wanted in all, splits finished."""

    def open(self, context: Context) -> None:
        self._context = self._reader.context = context
        self._reader.open()
        self._host = self._reader.host()

    def handle_operator_event(self, event: Any) -> None:
        if "end" in event:
            self._ended = True
            return
        # One that was sent before the subtasks were rescaled counts in no series but its own.
        self._received += event["series"] == self._series
        self._open.append([Split.from_json(event["split"]), None])

    def poll(self) -> Progress | Idle | Finished:
        self._ask()
        if self._open:
            self._read_some()
            return Progress()
        return Finished() if self._ended else Idle()

    def _ask(self) -> None:
        """Say how many splits are wanted in all: what a rolled-back attempt has said as well changes nothing."""
        wants = self._received + max(0, self._slots - len(self._open))
        if self._said is None or self._done > self._said[1] or (wants > self._said[0] and not self._ended):
            self._said = wants, self._done
            event = {"series": self._series, "wants": wants, "finished": self._done, "host": self._host}
            self._context.send_event_to_coordinator(event)

    def _read_some(self) -> None:
        current = self._open[0]
        split, position = current
        try:
            if self._records is None:
                self._records = iter(self._reader.read(split, position))
            deadline = time.monotonic() + TURN_S
            for _ in range(TURN_RECORDS):
                item = next(self._records, _END)
                if item is _END:
                    self._records = None
                    self._open.popleft()
                    self._done += 1
                    self._ask()
                    return
                try:
                    behind, record = item
                except (TypeError, ValueError):
                    raise ConfigurationError(f"read() must yield (position, record), not {item!r:.200}") from None
                self._reader.handle(record)
                current[1] = behind
                if time.monotonic() > deadline:
                    return
        except ConfigurationError as error:
            raise ConfigurationError(f"split {split.id!r}, after position {current[1]!r}: {error}") from error
        except PenstockError:
            raise
        except Exception as error:
            raise SubtaskError(
                f"split {split.id!r} cannot be read after position {current[1]!r}: {type(error).__name__}: {error}"
            ) from error

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {
            "series": self._series,
            "received": self._received,
            "finished": self._done,
            "ended": self._ended,
            "open": [[split.to_json(), position] for split, position in self._open],
            "reader": self._reader.snapshot_state(checkpoint_id),
        }

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self._series, self._received = state["series"], state["received"]
        self._done, self._ended = state["finished"], state["ended"]
        self._open = deque([Split.from_json(fields), position] for fields, position in state["open"])
        if state["reader"] is not None:
            self._reader.restore_state(checkpoint_id, state["reader"])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._reader.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        records, self._records = self._records, None
        try:
            if (close := getattr(records, "close", None)) is not None:
                close()
        finally:
            self._reader.close()


def rescale(deal: Deal | None, states: Sequence[Any], parallelism: int) -> list[Any]:
    """Deal the open splits of all subtasks, each with its position, over another number of subtasks.

    Counters begin anew, in a series of their own: the coordinator keeps the state of the old ones, and learns from the
    first request that they are over. ``deal`` does the same with the readers' own states.
    """
    known = [state for state in states if state is not None]
    opened = [entry for state in known for entry in state["open"]]
    readers = [state["reader"] for state in known]
    dealt: Sequence[Any] = [None] * parallelism
    if any(state is not None for state in readers):
        if deal is None:
            raise ConfigurationError(
                "the readers of this source have states of their own, so say how they are dealt over another number of"
                " subtasks: read_by(Reader, rescale=...), a function (states, parallelism) -> states"
            )
        dealt = deal(readers, parallelism)
        if len(dealt) != parallelism:
            raise ConfigurationError(f"rescale of read_by returned {len(dealt)} states for {parallelism} subtasks")
    return [
        {
            "series": 1 + max((state["series"] for state in known), default=0),
            "received": 0,
            "finished": sum(state["finished"] for state in known) if subtask == 0 else 0,
            "ended": False,
            "open": opened[subtask::parallelism],
            "reader": dealt[subtask],
        }
        for subtask in range(parallelism)
    ]
