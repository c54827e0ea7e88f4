"""A position that a partition does not have: somebody truncated it, or made the topic anew.

A checkpoint of its successors may have done that to an instance that was frozen. Whether it was so stands in the events
partition, below the end that it had when the position was missed: a Reset, a Stop, a Start. Only where nothing of the
kind is found there has something been lost. Waiting for the partition to run dry instead could wait for ever.
"""

from __future__ import annotations

from ...schemas.errors import SubtaskError
from . import effects as do
from . import hello
from .inputs import DataLost, PositionLost
from .instance import Instance, Loss
from .phases import Phase

WAYS_OUT = (
    "The way out is to begin where that is not needed: with --from-checkpoint N, N being a savepoint (it needs no"
    " records of the log) or an older checkpoint that is still there, or without any, with --fresh"
)


def events_lost(core: Instance, lost: PositionLost) -> None:
    if core.looking is not None:  # what is left is looked through; of what is gone, a successor fences this instance
        end, nonce = core.looking
        core.position = lost.begin
        return core.emit(do.Seek(lost.begin)) if lost.begin < end else hello.say(core, end, nonce)
    if core.phase is Phase.NEW:
        return None
    core.lost, core.position = Loss(lost.cause, lost.end), lost.begin
    return core.emit(do.Seek(lost.begin))


def data_lost(core: Instance, lost: DataLost) -> None:
    running = core.running
    if running is None or core.lost is not None:
        return
    core.lost = Loss(lost.cause, lost.events_end)
    core.emit(*map(do.PauseData, running.channels.upstreams))


def follow_up(core: Instance) -> None:
    """Everything below that end has been read, and the attempt is not over: so it fails."""
    lost, running = core.lost, core.running
    if lost is None or core.phase is Phase.LEFT or core.position < lost.end:
        return None
    if running is None:
        if core.foreign_attempt >= 0:  # another Hello would take the subtask from that attempt
            return core.superseded_by(core.foreign_attempt)
        error = SubtaskError(f"{core.who()}: {lost.cause}, and nothing behind it answers its Hello")
        core.emit(do.Report(error))
        return core.start_over()
    if running.call is not None:
        return None
    n = running.start.checkpoint_id
    begun = "its beginning" if n < 0 else f"checkpoint {n}"
    error = SubtaskError(
        f"{core.who()}: {lost.cause}. Nothing in its events says that another attempt took over, so it cannot go on"
        f" from {begun}: what it needs for that is gone. {WAYS_OUT}"
    )
    core.emit(do.Report(error))
    return core.fail(str(error))
