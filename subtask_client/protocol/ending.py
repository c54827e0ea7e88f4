"""How a subtask ends: its work, then its attempt, then its instance (protocol, section 8).

The end of the work (``poll`` said Finished, or ``end_inputs`` has returned) ends the attempt: no
event is handled any more, receivers are told, the coordinator is. The instance stays for a checkpoint that contains
this. Who emits nothing may be the second half of a two-phase commit: it says that a snapshot is its last only when the
user has been told of an earlier one with the same contents. So whoever dies before that notice is started again, and
whoever dies behind it owes nothing ◆.
"""

from __future__ import annotations

from ...schemas.acks import Finished
from . import effects as do
from .effects import Departure
from .instance import Instance
from .phases import Phase, Transition
from .running import Running


def work_ended(core: Instance, running: Running) -> None:
    running.work_over = True
    follow_up(core, running)


def end_inputs_returned(core: Instance, running: Running) -> None:
    running.end_call(do.EndInputs)
    work_ended(core, running)


def follow_up(core: Instance, running: Running) -> None:
    """Ends the attempt once its work is over and nothing keeps it.

    Before its own Start lies what the attempts before it were sent: their events have settled as handled, so they
    are in the state that this one ends with ◆.
    """
    if not running.work_over or core.phase is not Phase.RUNNING or running.call is not None:
        return
    if (
        running.behind_stop
        or core.lost is not None
        or core.position <= running.reading.offset  # mutant: ends-before-its-start
    ):
        return
    running.reading.ended, running.over_in = True, running.checkpoints.belongs_to
    core.move(Transition.WORK_ENDED)
    core.emit(*running.flush())
    core.emit(*running.outputs.ends())  # mutant: no-end-is-told
    core.emit(do.Write(Finished(running.sender)))


def told(core: Instance, running: Running, checkpoint_id: int) -> None:
    """The user knows that this checkpoint has completed."""
    if running.ends_with == checkpoint_id:
        return core.leave(Departure.FINISHED, f"checkpoint {checkpoint_id} contains the end of {core.who()}")
    if (
        running.settled
        or running.over_in is None
        or checkpoint_id < running.over_in  # mutant: told-of-an-earlier-checkpoint
    ):
        return None
    running.settled = True
    return core.emit(do.Write(Finished(running.sender)))  # the next checkpoint, its last, need not wait for its time
