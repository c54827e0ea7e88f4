"""What a Start says: where an attempt begins, given the checkpoint that it is restored from (protocol, section 5)."""

from __future__ import annotations

from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.events import FailoverPolicy, Start
from ..schemas.ids import NO_CHECKPOINT, Generation
from ..schemas.state import ChannelPosition


def start_of(
    generation: Generation,
    attempt: int,
    nonce: str,
    *,
    checkpoint_id: int | None,
    snapshot: SubtaskSnapshot | None,
    policy: FailoverPolicy,
    next_checkpoint_id: int,
    epoch_begin: int,
    data_positions: tuple[ChannelPosition, ...],
) -> Start:
    """The Start of ``attempt`` in ``generation``, from the subtask's ``snapshot`` in ``checkpoint_id``.

    ``epoch_begin`` is the offset at which the generation's epoch began in the subtask's partition. Behind the position
    of a checkpoint that an earlier epoch completed there is nothing but void frames: a restore begins a new epoch,
    whose frames all stand behind its beginning.
    """
    same_epoch = snapshot is not None and snapshot.epoch == generation.epoch
    expected = generation.epoch, handled_before(snapshot, generation.epoch, policy)
    if snapshot is not None and snapshot.event_ranges:
        expected = snapshot.epoch, snapshot.handled_through
    return Start(
        epoch=generation.epoch,
        generation=generation.number,
        attempt=attempt,
        nonce=nonce,
        checkpoint_id=NO_CHECKPOINT if checkpoint_id is None else checkpoint_id,
        state=None if snapshot is None else snapshot.state,
        next_checkpoint_id=next_checkpoint_id,
        expected_epoch=expected[0],
        expected_sequence=expected[1],
        event_position=snapshot.event_position if snapshot is not None and same_epoch else epoch_begin,
        event_ranges=() if snapshot is None else snapshot.event_ranges,
        data_positions=data_positions,
        policy=policy,
        inputs_ended=snapshot is not None and snapshot.inputs_ended,
    )


def handled_before(snapshot: SubtaskSnapshot | None, epoch: int, policy: FailoverPolicy) -> int:
    """Sequence, in the numbering of an attempt that starts in ``epoch``, of the first event not in its state."""
    if snapshot is None or snapshot.epoch != epoch or policy is FailoverPolicy.RESET:  # mutant: sequences-begin-anew
        return 0
    return snapshot.handled_through
