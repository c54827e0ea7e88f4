"""How an instance becomes an attempt: Hello, Start, Stop (protocol, sections 4 and 5)."""

from __future__ import annotations

import math

from ...schemas.acks import Refused
from ...schemas.errors import SubtaskError
from ...schemas.events import EventsRecord, Start, Stop, Welcome
from ...schemas.ids import NO_CHECKPOINT
from ...schemas.state import Sender, ascend
from ...schemas.versions import Versions
from . import effects as do
from .drop_reasons import Dropped
from .effects import Departure
from .instance import Instance
from .phases import Phase, Transition
from .running import Running

HELLOS_FAILED_MAX = 5
"""Bound for Hellos in a row that could not be written; each takes as long as an append may."""


def position_noted(core: Instance, end: int, nonce: str) -> None:
    if core.attempt is not None and core.position < end:  # mutant: hello-without-looking
        core.looking = end, nonce
    else:
        say(core, end, nonce)


def look_at(core: Instance, offset: int, record: EventsRecord | None) -> None:
    """A record between the end of the attempt before and the next Hello; None: an unreadable one."""
    assert core.looking is not None and core.attempt is not None
    end, nonce = core.looking
    core.position = offset + 1
    match record:
        case Start() if (
            record.epoch >= core.epoch_seen and record.attempt > core.attempt and record.nonce != core.nonce
        ):
            return core.superseded_by(record.attempt)
        case Stop() if record.nonce == core.nonce or record.attempt == core.attempt:
            return stop(core, record)
    core.drop(Dropped.UNREADABLE if record is None else Dropped.BEFORE_START)
    if core.position >= end:
        say(core, end, nonce)
    return None


def say(core: Instance, end: int, nonce: str) -> None:
    core.move(Transition.HELLO)
    core.spoken, core.welcomed_by = None, ""
    core.looking, core.lost, core.hello_failed = None, None, False
    core.previous = core.previous if core.attempt is None else core.attempt
    core.nonce, core.attempt, core.foreign_attempt, core.position = nonce, None, -1, end
    core.emit(do.Seek(end))
    _write(core, nonce)


def _write(core: Instance, nonce: str) -> None:
    core.answer_due = core.now + core.config.start_timeout
    core.emit(do.WriteHello(core.config.hello(nonce, core.previous, core.completed)))


def failed(core: Instance, cause: str) -> None:
    """The last Hello may stand or not: it is repeated once all is read, unless too many have failed."""
    core.hello_failed = True
    core.hellos_failed += core.attempt is None
    if core.hellos_failed > HELLOS_FAILED_MAX:
        reason = f"{core.who()}: Hello failed {core.hellos_failed} times in a row; the last time: {cause}"
        core.leave(Departure.HELLO_FAILED, reason)


def repeat(core: Instance) -> None:
    """With the same nonce: should both stand, the second Start makes the instance start over."""
    core.hello_failed = False
    if core.attempt is not None or core.nonce is None:
        return None
    if core.foreign_attempt >= 0:  # to write it again would take the subtask from whoever that is
        return core.superseded_by(core.foreign_attempt)
    return _write(core, core.nonce)


def taken(core: Instance, nonce: str, offset: int) -> None:
    if nonce != core.nonce or core.attempt is not None:
        return
    core.attempt, core.hellos_failed = offset, 0
    core.answer_due = core.now + core.config.start_timeout
    if core.foreign_attempt > offset:
        core.superseded_by(core.foreign_attempt)


def ask_if_overdue(core: Instance) -> None:
    """Time in which the broker is away does not count."""
    if core.phase is Phase.WAITING and core.now >= core.answer_due:
        core.answer_due = math.inf
        core.emit(do.AskBroker())


def broker_asked(core: Instance, reachable: bool) -> None:
    if core.phase is not Phase.WAITING:
        return
    if not reachable:
        core.answer_due = core.now + core.config.start_timeout
        return
    core.leave(
        Departure.NO_START,
        f"{core.who()}: no coordinator answered Hello {core.nonce} within {core.config.start_timeout:g} s; is the"
        " job's coordinator running, on the same broker, under the same prefix and job name, and of this release or a"
        " newer one?",
    )


def start(core: Instance, offset: int, start: Start) -> None:
    if start.nonce == core.nonce or start.attempt == core.attempt:
        if (
            core.running is not None
            and start.full_generation <= core.running.start.full_generation  # mutant: second-start-ignored
        ):
            return core.drop(Dropped.STALE_START)
        if core.foreign_attempt > start.attempt:
            return core.superseded_by(core.foreign_attempt)
        if (
            core.running is not None and start.checkpoint_id < core.completed  # mutant: old-hello-tells-nothing
        ):
            core.drop(Dropped.STALE_START)  # it answers a Hello that is older than what this instance was told since
            return core.start_over()
        if (reason := _refusal(core)) is not None:
            sender = Sender(*core.config.subtask, start.attempt, start.epoch, start.generation)
            return refuse(core, sender, reason)
        if (why := _defect(core, start)) is not None:
            core.emit(do.Report(SubtaskError(f"{core.who()}: the Start at offset {offset} is not followed: {why}")))
            return core.drop(Dropped.UNREADABLE)
        return _begin(core, offset, start)
    if core.attempt is None and start.attempt > core.previous:
        core.foreign_attempt = max(core.foreign_attempt, start.attempt)
    elif core.attempt is not None and start.attempt > core.attempt:
        return core.superseded_by(start.attempt)
    return core.drop(Dropped.OTHER_ATTEMPT)


def _defect(core: Instance, start: Start) -> str | None:
    """Return why no coordinator of this job can have written it; None if one can (protocol, section 5.2)."""
    channels = {position.channel: position for position in start.data_positions}
    for sender in core.config.senders:
        if (position := channels.get(str(sender))) is None:
            return f"it names no channel from {sender}; do the tasks and the coordinator run the same job file?"
        if not position.in_order:
            return f"the ranges of the channel from {sender} are out of order"
    lowest = min(
        start.generation, start.attempt, start.event_position, start.expected_epoch, start.expected_sequence,
        start.next_checkpoint_id, start.checkpoint_id - NO_CHECKPOINT,
    )  # fmt: skip
    return None if lowest >= 0 and ascend(start.event_ranges) else "a number is negative, or ranges are out of order"


def welcome(core: Instance, welcome: Welcome) -> None:
    """Which version the Start behind it is written in."""
    if welcome.nonce != core.nonce and welcome.attempt != core.attempt:
        return core.drop(Dropped.OTHER_ATTEMPT)
    core.spoken, core.welcomed_by = welcome.protocol, welcome.release
    return None


def _refusal(core: Instance) -> str | None:
    """Why this instance cannot work with the coordinator that starts it; None: it can (protocol, section 12)."""
    own, spoken = core.config.versions, core.spoken
    if spoken is None:
        return None  # the Welcome was lost: what the coordinator has decided stands
    theirs = Versions(spoken, 0, core.welcomed_by).told()
    if spoken > own.protocol:
        return f"{core.who()}: the coordinator, {theirs}, speaks above its {own.told()}: upgrade the tasks first"
    if own.refuses(spoken):
        return (
            f"{core.who()}: it runs {own.told()}, which works with protocol {own.oldest} and above, and the coordinator"
            f" {theirs}: upgrade the coordinator first"
        )
    return None


def refuse(core: Instance, sender: Sender, reason: str) -> None:
    """Tells the coordinator, so that the job fails with this reason; the task returns and is not tried again."""
    core.leave(Departure.REFUSED, reason, do.Write(Refused(sender, reason)))


def stop(core: Instance, stop: Stop) -> None:
    if stop.nonce != core.nonce and stop.attempt != core.attempt:
        return core.drop(Dropped.OTHER_ATTEMPT)
    return core.leave(Departure.SUPERSEDED if stop.superseded else Departure.STOPPED, stop.reason)


def _begin(core: Instance, offset: int, start: Start) -> None:
    """Takes up a Start; where the instance runs already, everything of before is dropped first."""
    core.drop_attempt()
    core.move(Transition.START)
    core.attempt, core.lost = start.attempt, None
    core.completed = max(core.completed, start.checkpoint_id)
    core.running = running = Running(start, offset, core.config)
    if running.reading.next_position != core.position:
        core.position = running.reading.next_position
        core.emit(do.Seek(core.position))
    core.emit(running.begin_call(do.OpenUser(start)))
