"""Rows that a subtask is fed beside its events, and their position in its snapshots (``docs/dataframes.md``).

The rows come from whoever hosts the task, batch by batch; this module knows nothing of what a batch is. How far they
have been consumed travels in front of the user's own state, which never sees it.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Protocol

from ..schemas.errors import ConfigurationError, StateError
from ..schemas.state import ROWS_MARK
from .api import Finished, Idle, PollResult, Progress, Subtask

DIGEST_BYTES = 16
_VERSION = 1
_HEADER = struct.Struct(f">8sBQ{DIGEST_BYTES}s??")
_WAIT_FIRST_S, _WAIT_MAX_S = 0.001, 0.02
_POSITIONS_MAX = 1_024
"""Checkpoints whose notice is awaited; a coordinator settles each, so only a broken one gets near this bound."""


class RowPosition(NamedTuple):
    """How far rows have been consumed."""

    rows: int
    digest: bytes | None
    """Of those rows, in order; None where nothing says what they were."""


BEGINNING = RowPosition(0, None)


class RowSource(Protocol):
    """The rows of one subtask, as one task gets them; it outlives the attempts in there.

    What an attempt cannot be helped with by starting over raises :class:`EndsTask`.
    """

    def seek(self, position: RowPosition) -> None:
        """An attempt begins: the next row is the one behind ``position``. Does not wait for it."""

    def take(self) -> Any | None:
        """The next batch, of a bounded size; None where none is ready, or none will come."""

    @property
    def ended(self) -> bool:
        """Every row has been taken."""

    def position(self) -> RowPosition:
        """Behind the rows taken; always with a digest."""

    def completed(self, position: RowPosition) -> None:
        """A checkpoint with this position stands: nothing before it is wanted again, as a rule."""


class EndsTask(BaseException):
    """Goes past the attempt and ends its task, which raises ``error``.

    No ``Exception``: those fail an attempt, and the next one begins in place, where it would fare no better.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RowFeed:
    """What stands between a row source and the user's object: of all attempts of one instance, one after the other."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self._begins_at = BEGINNING
        self._taken_at: dict[int, RowPosition] = {}
        """Positions of this attempt's snapshots, by checkpoint."""
        self._inputs_ended = False
        """The user's object, or the one whose state it begins with, has been told that there are no more rows."""
        self._wait_s = _WAIT_FIRST_S

    def begin(self, user: Subtask, who: str) -> None:
        """An attempt begins, from the beginning or from what :meth:`unwrapped` found."""
        kind = type(user)
        if kind.process_rows is Subtask.process_rows:
            raise ConfigurationError(
                f"{who} gets the rows of a DataFrame, and its {kind.__name__} does not say what to do with them: give"
                " it a process_rows(batch)"
            )
        if kind.poll is not Subtask.poll:
            raise ConfigurationError(
                f"{who} gets the rows of a DataFrame, and its {kind.__name__} has a poll: the work of such an operator"
                " comes as rows, to process_rows; give the poll to an operator of its own"
            )
        self._taken_at.clear()
        self._wait_s = _WAIT_FIRST_S
        self._source.seek(self._begins_at)

    def poll(self, user: Subtask) -> PollResult:
        """Hands one batch over, if there is one; the end of the rows is the end of the subtask's work."""
        if self._inputs_ended:
            return Finished()
        batch = self._source.take()
        if batch is not None:
            self._wait_s = _WAIT_FIRST_S
            user.process_rows(batch)
            return Progress()
        if not self._source.ended:
            wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, _WAIT_MAX_S)
            return Idle(wait_s)
        user.end_inputs()
        self._inputs_ended = True
        return Finished()

    def completed(self, checkpoint_id: int) -> None:
        position = self._taken_at.pop(checkpoint_id, None)
        if position is not None:
            self._taken_at = {n: at for n, at in self._taken_at.items() if n > checkpoint_id}
            self._source.completed(position)

    # ---- the position, in front of the user's state

    def wrapped(self, checkpoint_id: int, state: bytes | None) -> bytes:
        """The state that the checkpoint gets."""
        position = self._source.position()
        assert position.digest is not None
        self._taken_at[checkpoint_id] = position
        while len(self._taken_at) > _POSITIONS_MAX:
            del self._taken_at[next(iter(self._taken_at))]
        has_state, ended = state is not None, self._inputs_ended
        header = _HEADER.pack(ROWS_MARK, _VERSION, position.rows, position.digest, has_state, ended)
        return header + (state or b"")

    def unwrapped(self, who: str, checkpoint_id: int, data: bytes | None) -> bytes | None:
        """The user's own state, of the checkpoint that the next attempt begins from; -1 and None: from none."""
        self._inputs_ended = False
        if checkpoint_id < 0:
            self._begins_at = BEGINNING
            return None
        if data is None or len(data) < _HEADER.size or not data.startswith(ROWS_MARK):
            raise StateError(
                f"{who} gets the rows of a DataFrame, and its state in checkpoint {checkpoint_id} does not say how far"
                " they were read: the job ran without that input then. Start it without the input, or afresh"
            )
        _, version, rows, digest, has_state, ended = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise StateError(
                f"{who}: its position in the rows of its DataFrame, in checkpoint {checkpoint_id}, has version"
                f" {version}; known here is {_VERSION}. Use the version of penstock that wrote it, or a newer one"
            )
        self._begins_at, self._inputs_ended = RowPosition(rows, digest), ended
        return data[_HEADER.size :] if has_state else None


def refuse_position(who: str, checkpoint_id: int, data: bytes) -> None:
    """Raises StateError where a state has a position in front of it, and there are no rows."""
    if data.startswith(ROWS_MARK):
        raise StateError(
            f"{who}: its state in checkpoint {checkpoint_id} goes with a position in the rows of a DataFrame, and it"
            f" gets none now: start the run with inputs={{...}} again (spark_integration.run), or afresh"
        )
