"""Rules left out on purpose: each must be noticed, or the checks hold nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from penstock.coordinator.protocol import checkpoints, inbox, sending
from penstock.coordinator.protocol.effects import Truncate
from penstock.coordinator.protocol.gateway import Gateway
from penstock.coordinator.protocol.state import Attempt, JobState
from penstock.schemas.ids import SubtaskId
from penstock.subtask_client.protocol.core import SubtaskCore
from penstock.subtask_client.protocol.phases import Phase
from penstock.subtask_client.protocol.reading import Reading

Patches = list[tuple[object, str, Any]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """``config`` notices it within ``seeds``."""

    says: str
    patches: Callable[[], Patches]
    config: str
    seeds: int = 100


class _Anybody:
    """The identity of an attempt that takes everybody's records for its own."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _forget_inherited(job: JobState, subtask: SubtaskId) -> None:
    job.current.inherited.pop(subtask, None)


def _hand_over_at_once(job: JobState, delivery: Any) -> None:
    job.emit(delivery)


def _say_hello_again() -> Patches:
    superseded_by = SubtaskCore._superseded_by

    def mutant(core: SubtaskCore, attempt: int) -> Any:
        return superseded_by(core, attempt) if core.phase is Phase.NEW else core._start_over()

    return [(SubtaskCore, "_superseded_by", mutant)]


def _take_old_epochs() -> Patches:
    on_live_record = SubtaskCore._on_live_record

    def mutant(core: SubtaskCore, offset: int, record: Any) -> Any:
        seen = core.epoch_seen
        core.epoch_seen = min(seen, record.epoch)
        effects = on_live_record(core, offset, record)
        core.epoch_seen = max(seen, core.epoch_seen)
        return effects

    return [(SubtaskCore, "_on_live_record", mutant), (Reading, "refusal", lambda *_: None)]


def _truncate_everything() -> Patches:
    truncation = checkpoints._truncation

    def mutant(job: JobState) -> Truncate:
        return Truncate(truncation(job).events, job.position)

    return [(checkpoints, "_truncation", mutant)]


MUTANTS: dict[str, Mutant] = {
    "gateway-never-closes": Mutant(
        "section 7.3: at the cut that operator's gateways close",
        lambda: [(Gateway, "close", lambda gateway, n: n in gateway._marked)],
        "replay1-two",
    ),
    "no-release-below": Mutant(
        "section 7.4: whatever the gateway holds under lower ids is appended before the marker",
        lambda: [(sending, "release_below", lambda *_: None)],
        "replay2",
    ),
    "handed-over-at-once": Mutant(
        "section 7.2: until its future completes a coordinator is handed no event",
        lambda: [(inbox, "deliver", _hand_over_at_once)],
        "replay1",
    ),
    "anybodys-records": Mutant(
        "section 3: the coordinator drops what does not match attempt and generation",
        lambda: [(Attempt, "sender", lambda *_: _Anybody())],
        "replay2",
    ),
    "no-inbox-range": Mutant(
        "section 8: the inbox range is handed over",
        lambda: [(inbox, "hand_inherited", _forget_inherited)],
        "global1",
    ),
    "whole-inbox-range": Mutant(
        "section 8: the inbox range ends at the sent-sequence that the ack names",
        lambda: [(inbox, "below", lambda events, sequence: events)],
        "global2",
        200,
    ),
    "old-epochs-count": Mutant(
        "section 4: a subtask ignores records of an epoch lower than the highest it has seen",
        _take_old_epochs,
        "zombies-replay",
    ),
    "superseded-says-hello": Mutant(
        "section 4: a superseded attempt leaves and does not say Hello again",
        _say_hello_again,
        "twins-replay",
    ),
    "truncates-too-far": Mutant(
        "section 7.9: logs are truncated below the last completed checkpoint's positions",
        _truncate_everything,
        "replay1",
    ),
}


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """The cores with that rule left out; as they are, without a name."""
    with ExitStack() as stack:
        for target, attribute, mutant in MUTANTS[name].patches() if name is not None else []:
            stack.enter_context(patch.object(target, attribute, mutant))
        yield
