"""A checkpoint under way (protocol, section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...schemas.checkpoints import InboxEvents, SubtaskSnapshot
from ...schemas.ids import SubtaskId
from ...schemas.state import StateHandle
from .feed_state import FeedKey
from .timeline import Times


class Step(StrEnum):
    """Progress of a pending checkpoint: CALLING ──every cut──> ACKS ──every ack──> COMMITTING.

    Where a query drives the job, what every ack leads to is PREPARED, and the query's commit to COMMITTING.
    """

    CALLING = "calling"
    ACKS = "acks"
    PREPARED = "prepared"
    COMMITTING = "committing"


@dataclass(slots=True)
class Pending:
    """A checkpoint under way."""

    id: int
    savepoint: bool
    stop: bool
    command: int | None
    """Offset of the command that asked for it."""
    triggered_at: float
    """Monotonic seconds."""
    log_triggered_at: float
    """Log time, which stands still while the log is away."""
    inbox_position: int
    """First acks offset that no coordinator had been handed at the trigger; nor at the cut, as none is meanwhile."""
    uncut: set[str]
    """Operators whose coordinator has not completed its future; empty exactly from ACKS on."""
    required: frozenset[SubtaskId]
    """Those LIVE at the trigger: a failover of one aborts it, one that finishes counts with the snapshot of its end."""
    received: Mapping[SubtaskId, int] = field(default_factory=dict)
    """Of each of them: sequence of the first event to its coordinator that had not been read at the trigger."""
    step: Step = Step.CALLING
    storing: set[str] = field(default_factory=set)
    """Operators whose coordinator state is on its way to storage."""
    states: dict[str, StateHandle | None] = field(default_factory=dict)
    acks: dict[SubtaskId, SubtaskSnapshot] = field(default_factory=dict)
    """By identity; a subset of ``required``."""
    inbox: dict[SubtaskId, list[InboxEvents]] = field(default_factory=dict)
    """Savepoints only: events read since the trigger from subtasks that have not acknowledged."""
    inbox_bytes: int = 0
    feeds: Mapping[FeedKey, int] = field(default_factory=dict)
    """Positions of the feeds at the trigger; at each operator's cut they are the same."""
    times: Times = field(default_factory=Times)
