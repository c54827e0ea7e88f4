"""What users make of another parallelism, so that every event stays accounted for.

What subtasks handled is dealt in even runs, and what their coordinator had sent in the same way: so each new subtask
has handled exactly what it was, as it were, sent. What subtasks had sent, and what the coordinator has received of it
or still will, is their past: it has to be complete in every checkpoint from then on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.checkpoint_log.history import Checkpoint
from penstock.coordinator.host import CoordinatorSpec
from penstock.coordinator.protocol import effects, inputs
from penstock.coordinator.state_redistribution import Redistribution
from penstock.schemas.frames import unpack
from penstock.schemas.ids import SubtaskId
from penstock.schemas.user_codec import JsonCodec

from .violations import Violation

if TYPE_CHECKING:
    from .world import World


def runs(lists: Iterable[Sequence[int]], parallelism: int) -> list[list[int]]:
    """All of them end to end, in even runs."""
    items = [item for each in lists for item in each]
    cuts = [len(items) * index // parallelism for index in range(parallelism + 1)]
    return [items[begin:end] for begin, end in pairwise(cuts)]


def deal(states: Sequence[Any], parallelism: int) -> list[Any]:
    """The user's function for subtasks."""
    handled = runs([state["handled"] for state in states], parallelism)
    past = runs([state["past"] + state["sent"] for state in states], parallelism)
    blank: dict[str, Any] = {"sent": [], "taken": {}, "emitted": {}, "ended": 0}
    return [{**blank, "handled": mine, "past": gone} for mine, gone in zip(handled, past, strict=True)]


def fitted(lists: Mapping[str, Any], parallelism: int, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """A coordinator's state as it is with the subtask states of ``checkpoint``: they may have been dealt."""
    if checkpoint.header.rescaled_from == -1:
        return lists
    sent = [lists["sent"][str(s)] for s in range(len(lists["sent"]))]
    received = [uid for s in range(len(sent)) for uid in lists["received"][str(s)]]
    return {
        "sent": {str(s): mine for s, mine in enumerate(runs(sent, parallelism))},
        "received": {str(s): [] for s in range(parallelism)},
        "requests": lists["requests"],
        "past": lists["past"] + received,
        "fed": lists["fed"],
    }


def redistributed(world: World, unique: str, wanted: effects.Redistribute) -> inputs.Redistributed:
    spec = CoordinatorSpec(None, JsonCodec(), JsonCodec(), deal)
    specs = {operator.name: spec for operator in world.settings.operators}
    return Redistribution(world.settings, specs, world.storage, unique).perform(wanted)  # type: ignore[arg-type]


class RescalingChecks:
    """The past: what subtasks of a former layout had sent to their coordinator."""

    def __init__(self, world: World) -> None:
        self.world = world

    def past_of(self, checkpoint: Checkpoint, operator: str) -> list[int]:
        """All that subtasks had sent by their states before the last change of the layout."""
        checks, was = self.world.checks, checkpoint.operator(operator)
        assert was is not None
        past: list[int] = []
        for index in range(was.parallelism):
            snapshot = checkpoint.subtasks[SubtaskId(operator, index)]
            past += json.loads(checks.state_of(checkpoint.id, snapshot.state)).get("past", [])
        return past

    def completed(self, checkpoint: Checkpoint, operator: str, lists: Mapping[str, Any]) -> None:
        """Nothing of it is missing or doubled in a checkpoint; one that is derived may owe some."""
        past = self.past_of(checkpoint, operator)
        owed = [] if checkpoint.header.rescaled_from == -1 else self._owed(checkpoint, operator)
        there = [uid for uid in lists.get("past", []) + owed if uid in set(past)]
        if sorted(there) != sorted(past):
            raise Violation(
                f"G3: by checkpoint {checkpoint.id} the former subtasks of {operator} had sent {sorted(past)}, and"
                f" their coordinator has {sorted(there)}, of these {owed} in ranges"
            )

    def _owed(self, checkpoint: Checkpoint, operator: str) -> list[int]:
        """By the snapshots of all that there were, also of those that are gone."""
        owed: dict[int, None] = {}
        for subtask, snapshot in checkpoint.subtasks.items():
            if subtask.operator == operator:
                copied = [uid for part in snapshot.inbox for uid in uids(part)]
                owed.update(dict.fromkeys(copied + self.world.checks.inbox_range(checkpoint, subtask, snapshot)))
        return list(owed)

    def derived(self, checkpoint: Checkpoint, operator: str, lists: Mapping[str, Any]) -> None:
        """What each new subtask has handled is what it was sent, as its coordinator will see it."""
        was = checkpoint.operator(operator)
        assert was is not None
        for index in range(was.parallelism):
            state = self.world.checks.state_of(checkpoint.id, checkpoint.subtasks[SubtaskId(operator, index)].state)
            handled, sent = (
                json.loads(state)["handled"],
                fitted(lists, was.parallelism, checkpoint)["sent"].get(str(index), []),
            )
            if handled != sent:
                raise Violation(
                    f"G3: in checkpoint {checkpoint.id}, derived from {checkpoint.header.rescaled_from},"
                    f" {operator}/{index} has handled {handled}, and was sent {sent}"
                )

    def stayed(self) -> str | None:
        """Who still runs as a subtask that there is no more; None where nobody does."""
        there = set(self.world.settings.subtasks())
        alive = [str(i) for i in self.world.instances if i.alive and i.subtask not in there]
        return f"{alive} run as subtasks that the job no longer has" if alive else None


def uids(frame: Any) -> list[int]:
    return [json.loads(event) for event in unpack(frame.count, frame.lengths, frame.payload)]
