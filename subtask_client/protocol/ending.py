"""How a subtask ends: its work, then its attempt, then its instance (protocol, section 8).

1. *Its work* ends when ``poll`` returns Finished or ``end_inputs`` returns (``Running.work_ended``).
2. *Its attempt* ends when nothing keeps it: no event is handled any more; receivers and the coordinator are notified
   (phase finished, ``Running.ended_in``).
3. *Its instance* leaves when a checkpoint completes whose snapshot says ``finished`` (``Running.leaves_after``).

A subtask that emits nothing may be the second half of a two-phase commit. Its snapshot says ``finished`` only after its
user has been notified of an earlier one with the same contents (``Running.may_finish``). So a subtask that dies before
that notice is started again; after the notice it owes nothing ◆.
"""

from __future__ import annotations

from ...schemas.acks import Finished
from . import effects as do
from .effects import Departure
from .instance import Instance
from .phases import Phase, Transition
from .running import Running


def end_work(core: Instance, running: Running) -> None:
    running.work_ended = True
    follow_up(core, running)


def end_inputs_returned(core: Instance, running: Running) -> None:
    running.end_call(do.EndInputs)
    end_work(core, running)


def follow_up(core: Instance, running: Running) -> None:
    """End the attempt once its work has ended and nothing keeps it.

    Before its own Start lie events of earlier attempts. They have settled as handled, so they must be in the state that
    this attempt ends with ◆.
    """
    if not running.work_ended or core.phase is not Phase.RUNNING or running.call is not None:
        return
    if (
        running.stop_snapshot_taken
        or core.lost is not None
        or core.position <= running.reading.offset  # mutant: ends-before-its-start
    ):
        return
    running.ended_in = running.checkpoints.belongs_to
    core.move(Transition.WORK_ENDED)
    core.emit(*running.flush())
    core.emit(*running.outputs.ends())  # mutant: no-end-is-told
    core.emit(do.Write(Finished(running.sender)))


def completion_notified(core: Instance, running: Running, checkpoint_id: int) -> None:
    """Leave after the notice of the last checkpoint; ask for the last checkpoint after a notice of all the work."""
    if running.leaves_after == checkpoint_id:
        return core.leave(Departure.FINISHED, f"checkpoint {checkpoint_id} contains the end of {core.who()}")
    if (
        running.may_finish
        or running.ended_in is None
        or checkpoint_id < running.ended_in  # mutant: told-of-an-earlier-checkpoint
    ):
        return None
    running.may_finish = True
    return core.emit(do.Write(Finished(running.sender)))  # the next checkpoint, its last, need not wait for its time
