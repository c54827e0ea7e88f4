"""A checkpoint that was derived for another parallelism, against the one it was made of (protocol, section 5)."""

from __future__ import annotations

from collections.abc import Iterator

from ..schemas.checkpoints import SubtaskSnapshot
from .checkpoint_index import KnownCheckpoint

Loss = tuple[str, str]
"""What was expected of the derived one, and what it says."""


def losses(derived: KnownCheckpoint, of: KnownCheckpoint) -> Iterator[Loss]:
    """Its coordinators' states are the older one's, and it owes them the events that the older one owes."""
    states = {operator.operator: operator.coordinator_state for operator in derived.header.operators}
    for operator in of.header.operators:
        name = operator.operator
        if name not in states or states[name] != operator.coordinator_state:
            yield f"the state of the coordinator of {name} as in checkpoint {of.id}", "another, or none"
    for subtask, snapshot in sorted(of.subtasks.items()):
        kept, what = derived.subtasks.get(subtask), f"{subtask} as checkpoint {of.id} has it"
        if kept is None:
            yield f"{what}, also where it is gone", f"no {subtask}"
        elif _sender(kept) != _sender(snapshot):
            yield f"{what}, {_told(snapshot)}", _told(kept)
        elif derived.inbox.get(subtask, 0) != of.inbox.get(subtask, 0):
            held, holds = of.inbox.get(subtask, 0), derived.inbox.get(subtask, 0)
            yield f"the {held} events from {subtask} that checkpoint {of.id} holds itself", f"{holds} of them"


def _sender(snapshot: SubtaskSnapshot) -> tuple[int, ...]:
    """By what the events are known that it had sent and no coordinator had been handed."""
    return snapshot.attempt, snapshot.epoch, snapshot.generation, snapshot.ack_offset, snapshot.sent_sequence


def _told(snapshot: SubtaskSnapshot) -> str:
    return (
        f"attempt {snapshot.attempt} of generation {snapshot.epoch}.{snapshot.generation}, which had sent"
        f" {snapshot.sent_sequence} events"
    )
