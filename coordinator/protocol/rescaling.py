"""Another parallelism: the checkpoint that a start restores becomes one of its own layout (protocol, section 5).

Checkpoint n, taken with p subtasks of an operator, is never changed. From it a checkpoint n' with q subtasks is derived
and committed in the transaction that claims the epoch: so n' is there as a whole or not at all, and from then on it is
a checkpoint like any other, whose subtasks happen not to have taken it themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...checkpoint_log.history import Checkpoint, Keyed, keyed
from ...schemas.checkpoints import CheckpointCompleted, OperatorSnapshot, SubtaskSnapshot
from ...schemas.errors import JobRefused
from ...schemas.ids import NO_ATTEMPT, SubtaskId
from ...schemas.settings import OperatorSettings, Rescale
from ...schemas.state import OPEN_END, ChannelPosition, StateHandle
from .checkpoints import IDS_RESERVED
from .effects import Redistribute, StatesToDeal
from .snapshot_parts import in_parts
from .state import JobState

States = Mapping[str, tuple[StateHandle | None, ...]]


def resized(job: JobState, restored: Checkpoint) -> list[OperatorSettings]:
    """The operators that the checkpoint knows with another parallelism."""
    known = {was.operator: was.parallelism for was in restored.header.operators}
    return [o for o in job.settings.operators if known.get(o.name, o.parallelism) != o.parallelism]


def check(job: JobState, restored: Checkpoint) -> None:
    """Raises JobRefused where what the checkpoint holds cannot be spread over the subtasks that there are now."""
    changed = {operator.name for operator in resized(job, restored)}
    for operator in resized(job, restored):
        _check_ends(job, restored, operator)
        _check_states(job, restored, operator)
        _check_events(job, restored, operator)
    for receiver, snapshot in restored.subtasks.items():
        for position in snapshot.data_positions:
            if {receiver.operator, position.sender.operator} & changed:
                _check_channel(job, restored, receiver, position)


def to_deal(job: JobState, restored: Checkpoint) -> Redistribute | None:
    """What user code and codecs must see of the states; None where handles say enough."""
    wanted = []
    for operator in resized(job, restored):
        old = _states(restored, operator.name)
        if operator.rescale is not Rescale.REFUSE and any(old) and not _have_ended(restored, operator.name):
            wanted.append(StatesToDeal(operator.name, old, operator.parallelism))
    n, epoch = job.history.reserved_through + 1, job.epoch_to_claim
    return Redistribute(restored.id, n, epoch, tuple(wanted)) if wanted else None


def derived(job: JobState, restored: Checkpoint, dealt: States, acks_end: int) -> list[Keyed]:
    """The records of n'. An operator that keeps its parallelism keeps its snapshots, and one that is gone too."""
    sizes = {operator.name: operator.parallelism for operator in resized(job, restored)}
    snapshots: dict[str, list[SubtaskSnapshot]] = {}
    for was in restored.header.operators:
        name, parallelism = was.operator, sizes.get(was.operator)
        mine = {s.index: snapshot for s, snapshot in restored.subtasks.items() if s.operator == name}
        if parallelism is not None:
            mine = _over(restored, was, parallelism, dealt.get(name))
        snapshots[name] = [_without_channels(name, mine[index], set(sizes)) for index in sorted(mine)]
    n = job.history.reserved_through + 1
    parts = list(in_parts(n, snapshots, job.limits.part_bytes))
    header = replace(
        restored.header,
        epoch=job.epoch_to_claim,
        checkpoint_id=n,
        savepoint=False,
        triggered_at_ms=job.wall_ms(),
        completed_at_ms=job.wall_ms(),
        parts=len(parts),
        operators=tuple(_operator(restored.header, was, sizes, acks_end) for was in restored.header.operators),
        discarded=(),
        reserved_through=n + IDS_RESERVED,
        rescaled_from=restored.id,
    )
    return keyed(*parts, header)


def _operator(
    header: CheckpointCompleted, was: OperatorSnapshot, sizes: Mapping[str, int], acks_end: int
) -> OperatorSnapshot:
    """A savepoint holds its inbox itself, so n' asks the log for nothing: what stood there may be gone, or go when a
    coordinator before this one comes to truncate it."""
    # mutant: derived-asks-the-log-for-a-savepoints-inbox
    inbox_position = acks_end if header.savepoint else was.inbox_position
    return replace(was, parallelism=sizes.get(was.operator, was.parallelism), inbox_position=inbox_position)


def _over(
    restored: Checkpoint, was: OperatorSnapshot, parallelism: int, dealt: tuple[StateHandle | None, ...] | None
) -> dict[int, SubtaskSnapshot]:
    """One operator's snapshots over its new subtasks, and what is left of those that are gone.

    An index keeps who acknowledged n under it: by that the events are known that it had sent to its coordinator and
    that n owes. One that is gone keeps nothing else.
    """
    old = {s.index: snapshot for s, snapshot in restored.subtasks.items() if s.operator == was.operator}
    ended, ended_inputs = _have_ended(restored, was.operator), old[0].inputs_ended
    new: dict[int, SubtaskSnapshot] = {}
    for index in range(max(parallelism, max(old) + 1)):
        # mutant: derived-forgets-who-acknowledged
        snapshot = replace(old[index] if index in old else _nobody(index), data_positions=(), event_ranges=())
        if index >= parallelism:
            new[index] = replace(snapshot, state=None)
            continue
        state = snapshot.state if ended else _plain(restored, was.operator) if dealt is None else dealt[index]
        new[index] = replace(snapshot, state=state, finished=ended, inputs_ended=ended_inputs)
    return new


def _nobody(index: int) -> SubtaskSnapshot:
    """A subtask that there was not: it has sent nothing, and was sent nothing."""
    return SubtaskSnapshot(index, NO_ATTEMPT, 0, 0, 0, None, 0, (), 0, 0, (), False)


def _plain(restored: Checkpoint, operator: str) -> StateHandle | None:
    """Of an operator whose states are all missing or empty; missing where one was."""
    old = _states(restored, operator)
    return StateHandle(0, inline=b"") if all(state is not None for state in old) else None


def _without_channels(operator: str, snapshot: SubtaskSnapshot, changed: set[str]) -> SubtaskSnapshot:
    """Channels whose number has changed begin anew with the epoch: nothing of theirs is in flight."""
    kept = tuple(p for p in snapshot.data_positions if not {operator, p.sender.operator} & changed)
    return replace(snapshot, data_positions=kept)


def _subtasks(restored: Checkpoint, operator: str) -> list[SubtaskSnapshot]:
    """Of the layout that the checkpoint has, in the order of their indices; without those that were gone by then."""
    was = restored.operator(operator)
    assert was is not None
    return [restored.subtasks[SubtaskId(operator, index)] for index in range(was.parallelism)]


def _states(restored: Checkpoint, operator: str) -> tuple[StateHandle | None, ...]:
    return tuple(snapshot.state for snapshot in _subtasks(restored, operator))


def _have_ended(restored: Checkpoint, operator: str) -> bool:
    return all(snapshot.finished for snapshot in _subtasks(restored, operator))


# ---- what cannot be rescaled


def _check_ends(job: JobState, restored: Checkpoint, operator: OperatorSettings) -> None:
    """All have ended, or none: what a new subtask would have to do is not known otherwise."""
    old = _subtasks(restored, operator.name)
    for what, ended in (
        ("have finished", [s.subtask for s in old if s.finished]),
        ("have been notified that their inputs have ended", [s.subtask for s in old if s.inputs_ended]),
    ):
        if 0 < len(ended) < len(old):
            _refuse(
                job,
                restored,
                operator,
                f"its subtasks {_some(ended)} {what} and the others have not, so it is unknown what a"
                f" new subtask has yet to do. {_stay(job, restored, operator)}, until all of them have",
            )


def _check_states(job: JobState, restored: Checkpoint, operator: OperatorSettings) -> None:
    full = [s.subtask for s in _subtasks(restored, operator.name) if s.state is not None and s.state.size > 0]
    if operator.rescale is Rescale.REFUSE and full and not _have_ended(restored, operator.name):
        _refuse(
            job,
            restored,
            operator,
            f"its subtasks {_some(full)} have states, and the"
            ' operator does not say how they are redistributed: give it rescale="list", rescale="keyed" or a function'
            f" (job.operator(..., rescale=...)). Or {_stay(job, restored, operator).lower()}, or with --fresh",
        )


def _check_events(job: JobState, restored: Checkpoint, operator: OperatorSettings) -> None:
    """The policy for events that the checkpoint owes a subtask: nobody else is given them."""
    for snapshot in _subtasks(restored, operator.name):
        if snapshot.event_ranges and not _have_ended(restored, operator.name):
            ranges = ", ".join(f"{r.begin} to {r.end}" for r in snapshot.event_ranges)
            _refuse(
                job,
                restored,
                operator,
                f"events for its subtask {snapshot.subtask} are undelivered (offsets {ranges} of"
                f" {job.settings.topics.events(operator.name)}[{snapshot.subtask}]), and no other subtask may be given"
                f" them. {_stay(job, restored, operator)}, and stop the job with a savepoint, which has none",
            )


def _check_channel(job: JobState, restored: Checkpoint, receiver: SubtaskId, position: ChannelPosition) -> None:
    if any(segment.end != OPEN_END for segment in position.segments):
        changed = {o.name: o for o in resized(job, restored)}
        operator = changed.get(receiver.operator) or changed[position.sender.operator]
        _refuse(
            job,
            restored,
            operator,
            f"the checkpoint is unaligned, with records on their way from {position.channel} to {receiver}."
            f" {_stay(job, restored, operator)}, and stop the job with a savepoint, which is aligned",
        )


def _some(subtasks: list[int]) -> str:
    return ", ".join(map(str, subtasks[:8])) + (", ..." if len(subtasks) > 8 else "")


def _stay(job: JobState, restored: Checkpoint, operator: OperatorSettings) -> str:
    was = restored.operator(operator.name)
    assert was is not None
    return f"Start with parallelism {was.parallelism}"


def _refuse(job: JobState, restored: Checkpoint, operator: OperatorSettings, why: str) -> None:
    was = restored.operator(operator.name)
    assert was is not None
    raise JobRefused(
        f"checkpoint {restored.id} of job {job.settings.name} holds {was.parallelism} subtasks of operator"
        f" {operator.name}, the job now has {operator.parallelism}: {why}"
    )
