"""Every kind of damage is found, at its place; the same logs without it are healthy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from penstock.audit import Kind
from penstock.audit.report import COPIES
from penstock.schemas.acks import CheckpointAck, Command, Heartbeat, Hello, OperatorEventFrame
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointPart,
    CheckpointPrepared,
    CommandExecuted,
    EpochClaimed,
    InboxEvents,
    JobFinished,
    JobOutcome,
    RunClaimed,
    key_of,
)
from penstock.schemas.data import Barrier, RecordFrame
from penstock.schemas.events import CheckpointAborted, EventFrame, Reset, Start, TriggerCheckpoint
from penstock.schemas.events import CheckpointCompleted as Notice
from penstock.schemas.ids import NO_ATTEMPT, NO_CHECKPOINT, SubtaskId
from penstock.schemas.state import OPEN_END, StateHandle

from .logs import At, Logs, acknowledged, at_place, simulated

Edit = Callable[[Logs], tuple[Kind, At]]


class Damage(NamedTuple):
    """An edit of one of the healthy logs; it says what is found, and where."""

    logs: str
    edit: Edit


SEEDS = {
    "replay": ("savepoints-replay", 4),
    "reset": ("reset2", 3),
    "zombies": ("zombies-replay", 1),
    "data": ("pair-backlog", 13),
    "query": ("query-1", 1),
    "feeds": ("feeds-replay", 1),
    "rescaled": ("rescale-savepoints", 439),
    "shrunk": ("rescale-often", 58),
}
"""Which simulated history each set of logs is."""

DAMAGES: dict[str, Damage] = {}


def damage(logs: str) -> Callable[[Edit], Edit]:
    def register(edit: Edit) -> Edit:
        DAMAGES[edit.__name__.replace("_", " ")] = Damage(logs, edit)
        return edit

    return register


@cache
def healthy(name: str) -> Logs:
    return simulated(*SEEDS[name])


# ---- checkpoints that were derived for another parallelism


def derived(logs: Logs) -> tuple[At, CheckpointCompleted]:
    return logs.first(CheckpointCompleted, lambda c: c.rescaled_from != NO_CHECKPOINT)


def owing(logs: Logs, n: int) -> SubtaskId:
    """Whose events to its coordinator the checkpoint holds."""
    return next(
        SubtaskId(part.operator, snapshot.subtask)
        for _, part in logs.all(CheckpointPart, lambda p: p.checkpoint_id == n)
        for snapshot in part.subtasks
        if snapshot.inbox
    )


@damage("rescaled")
def a_derived_checkpoint_forgets_who_acknowledged(logs: Logs) -> tuple[Kind, At]:
    at, header = derived(logs)
    logs.change_snapshot(header.checkpoint_id, SubtaskId("alpha", 0), attempt=NO_ATTEMPT)
    return Kind.DERIVED, at


@damage("rescaled")
def a_derived_checkpoint_counts_fewer_events_of_a_subtask(logs: Logs) -> tuple[Kind, At]:
    at, header = derived(logs)
    subtask = owing(logs, header.checkpoint_id)
    logs.change_snapshot(header.checkpoint_id, subtask, sent_sequence=0)
    return Kind.DERIVED, at


@damage("rescaled")
def a_derived_checkpoint_lacks_the_inbox_of_its_savepoint(logs: Logs) -> tuple[Kind, At]:
    at, header = derived(logs)
    logs.change_snapshot(header.checkpoint_id, owing(logs, header.checkpoint_id), inbox=())
    return Kind.DERIVED, at


@damage("shrunk")
def a_derived_checkpoint_lacks_a_subtask_that_is_gone(logs: Logs) -> tuple[Kind, At]:
    at, header = logs.last(CheckpointCompleted, lambda c: c.rescaled_from != NO_CHECKPOINT)
    gone = SubtaskId("alpha", header.operators[0].parallelism)
    part_at, part, snapshot = logs.part_of(header.checkpoint_id, gone)
    logs.change(part_at, subtasks=tuple(s for s in part.subtasks if s is not snapshot))
    return Kind.DERIVED, at


@damage("rescaled")
def a_derived_checkpoint_has_another_state_of_a_coordinator(logs: Logs) -> tuple[Kind, At]:
    at, header = derived(logs)
    operator, *others = header.operators
    logs.change(at, operators=(replace(operator, coordinator_state=StateHandle(1, inline=b"x")), *others))
    return Kind.DERIVED, at


@damage("rescaled")
def a_checkpoint_is_derived_of_another_than_the_restored_one(logs: Logs) -> tuple[Kind, At]:
    at, header = derived(logs)
    logs.change(at, rescaled_from=header.rescaled_from - 1)
    return Kind.RESTORED, at


@pytest.mark.parametrize("name", SEEDS)
def test_the_logs_are_healthy_before_they_are_edited(name: str) -> None:
    report = healthy(name).copy().audit()
    assert report.healthy, str(report)
    assert not report.unjudged
    assert report.checked["completed checkpoints"] > 3
    assert report.checked["positions against markers"] > 3


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_at_its_place(name: str) -> None:
    what = DAMAGES[name]
    logs = healthy(what.logs).copy()
    kind, at = what.edit(logs)
    report = logs.audit()
    found = at_place(report, at)
    assert kind in {finding.kind for finding in found}, f"wanted {kind} at {at}; {report}"


# ---- events


def frame_before_a_frame(logs: Logs) -> tuple[At, EventFrame, At, EventFrame]:
    """Two neighbours of one epoch (and attempt)."""
    entries = list(logs.all(EventFrame))
    for (at, one), (behind, other) in itertools.pairwise(entries):
        same = (at.partition, one.epoch, one.attempt) == (behind.partition, other.epoch, other.attempt)
        if same and other.sequence == one.sequence + one.count:
            return at, one, behind, other
    raise LookupError("no two frames in a row")


def its_marker(logs: Logs, n: int) -> tuple[At, TriggerCheckpoint]:
    return logs.first(TriggerCheckpoint, lambda marker: marker.checkpoint_id == n)


@damage("replay")
def a_frame_is_missing(logs: Logs) -> tuple[Kind, At]:
    at, _, behind, _ = frame_before_a_frame(logs)
    logs.drop(at)
    return Kind.SEQUENCE, behind


@damage("reset")
def a_frame_is_missing_under_reset(logs: Logs) -> tuple[Kind, At]:
    at, _, behind, _ = frame_before_a_frame(logs)
    logs.drop(at)
    return Kind.SEQUENCE, behind


@damage("replay")
def another_frame_has_the_same_sequence(logs: Logs) -> tuple[Kind, At]:
    at, frame, _, _ = frame_before_a_frame(logs)
    again = At(at.partition, at.offset + 1)
    logs.insert(again, replace(frame, payload=bytes(len(frame.payload))))
    return Kind.SEQUENCE, again


@damage("replay")
def two_frames_have_changed_places(logs: Logs) -> tuple[Kind, At]:
    at, _, behind, _ = frame_before_a_frame(logs)
    logs.swap(at, behind)
    return Kind.SEQUENCE, at


@damage("replay")
def a_frame_is_numbered_wrongly(logs: Logs) -> tuple[Kind, At]:
    at, frame = logs.last(EventFrame)
    logs.change(at, sequence=frame.sequence + 7)
    return Kind.SEQUENCE, at


@damage("replay")
def a_frame_cannot_be_decoded(logs: Logs) -> tuple[Kind, At]:
    at, _, behind, _ = frame_before_a_frame(logs)
    logs.put(at, None, raw=b"\x00 garbage")
    return Kind.SEQUENCE, behind


@damage("replay")
def a_frame_contradicts_itself(logs: Logs) -> tuple[Kind, At]:
    at, frame = logs.first(EventFrame)
    logs.change(at, payload=frame.payload + b"more")
    return Kind.FRAME, at


@damage("replay")
def a_frame_is_of_an_epoch_that_nobody_claimed(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(EventFrame)
    logs.change(at, epoch=9_999)
    return Kind.EPOCH, at


@damage("reset")
def a_frame_is_addressed_to_another_attempt(logs: Logs) -> tuple[Kind, At]:
    at, frame = logs.last(EventFrame)
    logs.change(at, attempt=frame.attempt + 1)
    return Kind.ATTEMPT, at


@damage("replay")
def a_marker_is_missing(logs: Logs) -> tuple[Kind, At]:
    at, _ = its_marker(logs, acknowledged(logs)[1].checkpoint_id)
    logs.drop(at)
    return Kind.POSITION, at


@damage("replay")
def a_marker_names_another_sequence(logs: Logs) -> tuple[Kind, At]:
    at, marker = its_marker(logs, acknowledged(logs)[1].checkpoint_id)
    logs.change(at, sequence=marker.sequence + 1)
    return Kind.SEQUENCE, at


@damage("replay")
def a_marker_stands_before_an_event_of_its_checkpoint(logs: Logs) -> tuple[Kind, At]:
    for at, frame in logs.all(EventFrame):
        behind = At(at.partition, at.offset + 1)
        marker = logs.at(behind) if behind.offset < logs.end[at.partition] else None
        if isinstance(marker, TriggerCheckpoint) and marker.epoch == frame.epoch:
            logs.swap(at, behind)
            return Kind.SEQUENCE, at
    raise LookupError("no marker behind a frame")


@damage("replay")
def a_marker_uses_an_id_again(logs: Logs) -> tuple[Kind, At]:
    at, marker = logs.first(TriggerCheckpoint)
    behind, _ = logs.behind(at, TriggerCheckpoint, lambda m: m.epoch == marker.epoch and m.sequence > marker.sequence)
    logs.change(behind, checkpoint_id=marker.checkpoint_id)
    return Kind.CHECKPOINT_ID, behind


@damage("replay")
def a_marker_uses_an_id_that_nobody_reserved(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(TriggerCheckpoint)
    logs.change(at, checkpoint_id=1_000_000)
    return Kind.CHECKPOINT_ID, at


@damage("replay")
def the_end_of_a_partition_is_lost(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(TriggerCheckpoint, lambda m: m.checkpoint_id == acknowledged(logs)[1].checkpoint_id)
    logs.cut_off(at.partition, at.offset)
    return Kind.POSITION, at


@damage("replay")
def a_partition_is_truncated_above_what_the_last_checkpoint_needs(logs: Logs) -> tuple[Kind, At]:
    at, _ = its_marker(logs, acknowledged(logs)[1].checkpoint_id)
    logs.truncate(at.partition, logs.end[at.partition])
    return Kind.RETENTION, At(at.partition, logs.end[at.partition])


@damage("replay")
def a_start_carries_another_nonce(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(Start)
    logs.change(at, nonce="nobody's")
    return Kind.ATTEMPT, at


@damage("replay")
def a_start_answers_a_hello_that_was_never_said(logs: Logs) -> tuple[Kind, At]:
    at, start = logs.last(Start)
    logs.change(at, attempt=start.attempt + 1)
    return Kind.ATTEMPT, at


@damage("replay")
def a_start_carries_another_state(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(Start)
    logs.change(at, state=StateHandle(3, b"odd"))
    return Kind.START, at


@damage("zombies")
def a_start_begins_at_another_position(logs: Logs) -> tuple[Kind, At]:
    _at, start = logs.last(Start)
    behind, _ = logs.last(Start, lambda s: s.epoch == start.epoch and s is not start)
    logs.change(behind, event_position=start.event_position + 1_000)
    return Kind.START, behind


@damage("replay")
def a_start_expects_another_event(logs: Logs) -> tuple[Kind, At]:
    at, start = logs.last(Start)
    logs.change(at, expected_sequence=start.expected_sequence + 3)
    return Kind.START, at


@damage("zombies")
def a_start_names_a_checkpoint_of_another_line(logs: Logs) -> tuple[Kind, At]:
    restored = {claim.epoch: claim.restored_checkpoint_id for _, claim in logs.all(EpochClaimed)}
    for at, start in logs.all(Start):
        for _, other in logs.all(CheckpointCompleted):
            if other.epoch != start.epoch and other.checkpoint_id != restored[start.epoch]:
                logs.change(at, checkpoint_id=other.checkpoint_id)
                return Kind.RESTORED, at
    raise LookupError("no checkpoint of another line")


@damage("replay")
def a_start_repeats_a_generation(logs: Logs) -> tuple[Kind, At]:
    for at, start in logs.all(Start):
        for behind, other in logs.all(Start, lambda s, e=start.epoch: s.epoch == e):  # type: ignore[misc]
            if behind.partition == at.partition and behind.offset > at.offset:
                logs.change(behind, generation=start.generation)
                assert other.generation > start.generation
                return Kind.GENERATION, behind
    raise LookupError("no second Start in an epoch")


@damage("replay")
def a_reset_goes_back(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(Reset, lambda r: r.generation > 0)
    logs.change(at, generation=-1)
    return Kind.GENERATION, at


@damage("replay")
def a_notice_tells_of_a_checkpoint_that_never_completed(logs: Logs) -> tuple[Kind, At]:
    at, notice = logs.last(Notice)
    logs.change(at, checkpoint_id=notice.checkpoint_id + 1)
    return Kind.NOTICE, at


@damage("replay")
def a_notice_aborts_a_completed_checkpoint(logs: Logs) -> tuple[Kind, At]:
    at, notice = logs.last(Notice)
    logs.put(at, CheckpointAborted(notice.epoch, notice.checkpoint_id, "forged"))
    return Kind.NOTICE, at


# ---- the checkpoint log


def key(logs: Logs, at: At) -> str:
    return key_of(logs.at(at))  # type: ignore[arg-type]


@damage("zombies")
def the_claim_of_an_epoch_is_missing(logs: Logs) -> tuple[Kind, At]:
    at, _claim = logs.first(EpochClaimed, lambda c: c.epoch == 2)
    behind, _ = logs.first(EpochClaimed, lambda c: c.epoch == 3)
    logs.drop(at)
    return Kind.CHECKPOINT_ID, behind  # it reserved ids


@damage("zombies")
def an_epoch_is_claimed_by_two(logs: Logs) -> tuple[Kind, At]:
    _at, claim = logs.first(EpochClaimed, lambda c: c.epoch == 2)
    behind, _ = logs.first(EpochClaimed, lambda c: c.epoch == 3)
    logs.change(behind, epoch=2, instance="another")
    assert claim.instance != "another"
    return Kind.EPOCH, behind


@damage("zombies")
def an_epoch_restores_what_was_never_there(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(EpochClaimed)
    logs.change(at, restored_checkpoint_id=999_999)
    return Kind.RESTORED, at


@damage("zombies")
def an_epoch_reserves_ids_that_were_used(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(EpochClaimed)
    logs.change(at, first_checkpoint_id=1)
    return Kind.CHECKPOINT_ID, at


@damage("zombies")
def an_epoch_finds_another_topic_under_a_name(logs: Logs) -> tuple[Kind, At]:
    at, claim = logs.last(EpochClaimed)
    logs.change(at, topic_ids=dict.fromkeys(claim.topic_ids, "another"))
    return Kind.TOPIC, at


@damage("replay")
def a_topic_has_been_deleted(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(EpochClaimed)
    gone = logs.partition("acks")
    del logs.topics[gone.topic], logs.records[gone]
    return Kind.TOPIC, at


@damage("replay")
def a_part_is_missing(logs: Logs) -> tuple[Kind, At]:
    at, header = acknowledged(logs)
    part, _ = logs.first(CheckpointPart, lambda p: p.checkpoint_id == header.checkpoint_id)
    logs.drop(part)
    return Kind.PARTS, at


@damage("replay")
def a_part_lacks_a_subtask(logs: Logs) -> tuple[Kind, At]:
    at, header = acknowledged(logs)
    part_at, part = logs.first(CheckpointPart, lambda p: p.checkpoint_id == header.checkpoint_id)
    logs.change(part_at, subtasks=part.subtasks[1:])
    return Kind.PARTS, at


@damage("replay")
def the_completion_of_a_checkpoint_is_missing(logs: Logs) -> tuple[Kind, At]:
    _, notice = logs.last(Notice)
    at, _ = logs.last(CheckpointCompleted, lambda c: c.checkpoint_id == notice.checkpoint_id)
    told, _ = logs.first(Notice, lambda other: other.checkpoint_id == notice.checkpoint_id)
    logs.drop(at)
    return Kind.NOTICE, told


@damage("zombies")
def a_replaced_coordinator_completes_a_checkpoint(logs: Logs) -> tuple[Kind, At]:
    at, header = logs.last(CheckpointCompleted, lambda c: c.epoch > 1)
    logs.change(at, epoch=header.epoch - 1)
    return Kind.EPOCH, at


@damage("replay")
def a_checkpoint_completes_twice(logs: Logs) -> tuple[Kind, At]:
    at, header = logs.last(CheckpointCompleted)
    return Kind.CHECKPOINT_ID, logs.append(at.partition, header, key(logs, at))


@damage("replay")
def a_checkpoint_has_an_id_of_another_block(logs: Logs) -> tuple[Kind, At]:
    at, _header = logs.last(CheckpointCompleted)
    logs.change(at, checkpoint_id=1_000_000)
    return Kind.CHECKPOINT_ID, at


@damage("replay")
def a_checkpoint_discards_what_is_not_there(logs: Logs) -> tuple[Kind, At]:
    at, header = logs.last(CheckpointCompleted)
    logs.change(at, discarded=(*header.discarded, 555_555))
    return Kind.DISCARD, at


@damage("replay")
def the_last_checkpoint_is_discarded(logs: Logs) -> tuple[Kind, At]:
    newest = max(c.checkpoint_id for _, c in logs.all(CheckpointCompleted))
    return Kind.DISCARD, logs.append(logs.partition("checkpoints"), None, f"checkpoint/{newest}")


@damage("replay")
def a_run_is_claimed_behind_the_end_of_the_job(logs: Logs) -> tuple[Kind, At]:
    log = logs.partition("checkpoints")
    _, claim = logs.last(EpochClaimed)
    _, run = logs.last(RunClaimed)
    logs.append(log, JobFinished(claim.epoch, JobOutcome.FAILED, "", run.run), "finished")
    return Kind.ENDED, logs.append(log, run, "run")


@damage("replay")
def a_record_of_the_checkpoint_log_cannot_be_decoded(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(CheckpointCompleted)
    logs.put(at, None, raw=b"garbage")
    return Kind.UNREADABLE, at


@damage("replay")
def a_record_of_the_checkpoint_log_has_the_key_of_another(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(CheckpointCompleted)
    logs.rekey(at, "checkpoint/1")
    return Kind.KEY, at


@damage("replay")
def a_run_is_claimed_that_nobody_announced(logs: Logs) -> tuple[Kind, At]:
    at, claim = logs.first(RunClaimed)
    logs.change(at, run="another")
    return Kind.RUN, At(logs.partition("acks"), claim.offset)


@damage("replay")
def a_command_is_executed_that_nobody_gave(logs: Logs) -> tuple[Kind, At]:
    at, done = logs.first(CommandExecuted)
    logs.change(at, command="another")
    return Kind.COMMAND, At(logs.partition("acks"), done.offset)


@damage("replay")
def a_command_is_missing(logs: Logs) -> tuple[Kind, At]:
    executed = {done.offset for _, done in logs.all(CommandExecuted)}
    at = next(at for at, _ in logs.all(Command) if at.offset in executed)
    logs.drop(at)
    return Kind.COMMAND, at


# ---- checkpoints against markers and acks


@damage("replay")
def a_position_is_behind_its_marker(logs: Logs) -> tuple[Kind, At]:
    _, header = acknowledged(logs)
    at, _ = its_marker(logs, header.checkpoint_id)
    _, _, snapshot = logs.part_of(header.checkpoint_id, logs.subtask(at))
    position = snapshot.event_position + 1
    logs.change_snapshot(header.checkpoint_id, logs.subtask(at), event_position=position)
    logs.change(At(logs.partition("acks"), snapshot.ack_offset), event_position=position)
    return Kind.POSITION, at


@damage("replay")
def a_state_holds_an_event_less_than_it_should(logs: Logs) -> tuple[Kind, At]:
    _, header = acknowledged(logs)
    at, marker = its_marker(logs, header.checkpoint_id)
    _, _, snapshot = logs.part_of(header.checkpoint_id, logs.subtask(at))
    logs.change_snapshot(header.checkpoint_id, logs.subtask(at), handled_through=marker.sequence - 1)
    logs.change(At(logs.partition("acks"), snapshot.ack_offset), handled_through=marker.sequence - 1)
    return Kind.POSITION, at


@damage("zombies")
def a_checkpoint_was_acknowledged_in_another_generation(logs: Logs) -> tuple[Kind, At]:
    _, header = acknowledged(logs)
    at, _ = its_marker(logs, header.checkpoint_id)
    logs.change_snapshot(header.checkpoint_id, logs.subtask(at), generation=77)
    return Kind.ATTEMPT, at


@damage("zombies")
def a_checkpoint_holds_a_part_of_an_older_epoch(logs: Logs) -> tuple[Kind, At]:
    at, header = acknowledged(logs)
    subtask = logs.subtask(its_marker(logs, header.checkpoint_id)[0])
    logs.change_snapshot(header.checkpoint_id, subtask, epoch=header.epoch - 1)
    return Kind.ATTEMPT, at


@damage("replay")
def an_ack_is_missing(logs: Logs) -> tuple[Kind, At]:
    _, header = acknowledged(logs)
    at, _ = logs.first(CheckpointAck, lambda ack: ack.checkpoint_id == header.checkpoint_id)
    logs.drop(at)
    return Kind.ACK, at


@damage("replay")
def an_ack_is_of_another_attempt(logs: Logs) -> tuple[Kind, At]:
    _, header = acknowledged(logs)
    at, ack = logs.first(CheckpointAck, lambda ack: ack.checkpoint_id == header.checkpoint_id)
    _, hello = logs.first(Hello, lambda h: h.subtask != ack.sender.subtask)
    logs.change(at, sender=replace(ack.sender, subtask=hello.subtask))
    return Kind.ACK, at


@damage("replay")
def an_ack_says_something_else_than_its_checkpoint(logs: Logs) -> tuple[Kind, At]:
    _, header = acknowledged(logs)
    at, ack = logs.first(CheckpointAck, lambda ack: ack.checkpoint_id == header.checkpoint_id)
    logs.change(at, sent_sequence=ack.sent_sequence + 5)
    return Kind.ACK, at


@damage("replay")
def an_ack_claims_events_that_were_never_sent(logs: Logs) -> tuple[Kind, At]:
    _, header = acknowledged(logs)
    at, ack = logs.first(CheckpointAck, lambda ack: ack.checkpoint_id == header.checkpoint_id)
    logs.change_snapshot(header.checkpoint_id, ack.sender.subtask_id, sent_sequence=10_000)
    logs.change(at, sent_sequence=10_000)
    return Kind.SEQUENCE, at


@damage("replay")
def an_ack_stands_behind_the_completion(logs: Logs) -> tuple[Kind, At]:
    at, _header = acknowledged(logs)
    logs.change(at, acks_position=1)
    return Kind.ACK, at


@damage("replay")
def a_savepoint_lacks_an_event_of_its_inbox(logs: Logs) -> tuple[Kind, At]:
    for _, part in logs.all(CheckpointPart):
        for snapshot in part.subtasks:
            if snapshot.inbox:
                subtask, n = SubtaskId(part.operator, snapshot.subtask), part.checkpoint_id
                logs.change_snapshot(n, subtask, inbox=snapshot.inbox[:-1] or (_moved(snapshot.inbox[0]),))
                return Kind.SEQUENCE, logs.first(CheckpointCompleted, lambda c, n=n: c.checkpoint_id == n)[0]  # type: ignore[misc]
    raise LookupError("no savepoint with an inbox")


def _moved(events: InboxEvents) -> InboxEvents:
    return replace(events, sequence=events.sequence - 1)


# ---- acks


@damage("replay")
def events_to_the_coordinator_are_missing(logs: Logs) -> tuple[Kind, At]:
    for at, frame in logs.all(OperatorEventFrame):
        for behind, other in logs.all(OperatorEventFrame, lambda f, s=frame.sender: f.sender == s):  # type: ignore[misc]
            if behind.offset > at.offset and other.sequence == frame.sequence + frame.count:
                logs.drop(at)
                return Kind.SEQUENCE, behind
    raise LookupError("no two frames in a row")


@damage("replay")
def more_is_reported_handled_than_was_sent(logs: Logs) -> tuple[Kind, At]:
    at, _beat = logs.last(Heartbeat)
    logs.change(at, handled_through=1_000_000)
    return Kind.HANDLED, at


@damage("replay")
def a_heartbeat_is_of_an_epoch_that_nobody_claimed(logs: Logs) -> tuple[Kind, At]:
    at, beat = logs.last(Heartbeat)
    logs.change(at, sender=replace(beat.sender, epoch=9_999))
    return Kind.EPOCH, at


@damage("replay")
def a_hello_is_missing(logs: Logs) -> tuple[Kind, At]:
    _, start = logs.last(Start)
    at = At(logs.partition("acks"), start.attempt)
    first = next(
        a for a, r in logs.all(Heartbeat) if r.sender.attempt == start.attempt and r.sender.epoch <= start.epoch
    )
    logs.drop(at)
    return Kind.ATTEMPT, first


@damage("replay")
def the_acks_are_truncated_above_a_kept_inbox(logs: Logs) -> tuple[Kind, At]:
    acks = logs.partition("acks")
    logs.truncate(acks, logs.end[acks])
    return Kind.RETENTION, At(acks, logs.end[acks])


# ---- data


@damage("data")
def records_between_operators_are_missing(logs: Logs) -> tuple[Kind, At]:
    for at, frame in logs.all(RecordFrame):
        following = [
            (b, r)
            for b, r in logs.all(RecordFrame, lambda f, s=frame.sender: f.sender == s)  # type: ignore[misc]
            if b.partition == at.partition and r.sequence == frame.sequence + 1
        ]
        if following:
            logs.drop(at)
            return Kind.SEQUENCE, following[0][0]
    raise LookupError("no two frames in a row")


def a_barrier_that_counts(logs: Logs) -> tuple[At, Barrier]:
    completed = {c.checkpoint_id: c for _, c in logs.all(CheckpointCompleted)}
    for at, barrier in logs.all(Barrier, lambda b: b.checkpoint_id in completed):
        receiver = SubtaskId(at.partition.topic.split(".")[-2], at.partition.index)
        _, _, snapshot = logs.part_of(barrier.checkpoint_id, receiver)
        opened = [s.begin for p in snapshot.data_positions for s in p.segments if s.end == OPEN_END]
        if at.offset + 1 in opened and snapshot.epoch == completed[barrier.checkpoint_id].epoch:
            return at, barrier
    raise LookupError("no barrier of a completed checkpoint")


@damage("data")
def a_barrier_is_missing(logs: Logs) -> tuple[Kind, At]:
    at, _ = a_barrier_that_counts(logs)
    logs.drop(at)
    return Kind.POSITION, at


@damage("data")
def a_barrier_is_of_another_checkpoint(logs: Logs) -> tuple[Kind, At]:
    at, _barrier = a_barrier_that_counts(logs)
    logs.change(at, checkpoint_id=1_000_000)
    return Kind.CHECKPOINT_ID, at


@damage("data")
def a_data_position_is_at_another_place_than_its_barrier(logs: Logs) -> tuple[Kind, At]:
    at, barrier = a_barrier_that_counts(logs)
    receiver = SubtaskId(at.partition.topic.split(".")[-2], at.partition.index)
    _, _, snapshot = logs.part_of(barrier.checkpoint_id, receiver)
    moved = tuple(
        replace(p, segments=tuple(replace(s, begin=s.begin + 1) if s.end == OPEN_END else s for s in p.segments))
        for p in snapshot.data_positions
    )
    logs.change_snapshot(barrier.checkpoint_id, receiver, data_positions=moved)
    logs.change(At(logs.partition("acks"), snapshot.ack_offset), data_positions=moved)
    return Kind.POSITION, at


@damage("data")
def a_start_leaves_out_a_range_of_a_channel(logs: Logs) -> tuple[Kind, At]:
    for at, start in logs.all(Start):
        if any(s.end != OPEN_END for position in start.data_positions for s in position.segments):
            opened = tuple(
                replace(p, segments=tuple(s for s in p.segments if s.end == OPEN_END)) for p in start.data_positions
            )
            logs.change(at, data_positions=opened)
            return Kind.START, at
    raise LookupError("no Start with a range")


@damage("data")
def a_data_partition_is_truncated_above_a_kept_range(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.first(RecordFrame)
    logs.truncate(at.partition, logs.end[at.partition])
    return Kind.RETENTION, At(at.partition, logs.end[at.partition])


# ---- a query's batches


@damage("feeds")
def a_checkpoint_forgets_a_batch_of_a_query(logs: Logs) -> tuple[Kind, At]:
    at, header = logs.last(CheckpointCompleted)
    assert any(operator.feeds for operator in header.operators)
    logs.change(at, operators=tuple(replace(operator, feeds=()) for operator in header.operators))
    return Kind.FEED, at


@damage("query")
def a_batch_completes_that_was_never_prepared(logs: Logs) -> tuple[Kind, At]:
    at, header = logs.last(CheckpointCompleted)
    prepared, _ = logs.last(CheckpointPrepared, lambda p: p.checkpoint_id == header.checkpoint_id)
    logs.drop(prepared)
    return Kind.BATCH, at


@damage("query")
def a_batch_begins_behind_the_end_of_the_one_before(logs: Logs) -> tuple[Kind, At]:
    entries = list(logs.all(CheckpointPrepared))
    for (_, one), (at, other) in itertools.pairwise(entries):
        if one.epoch == other.epoch:
            completed = next(
                (a for a, c in logs.all(CheckpointCompleted) if c.checkpoint_id == other.checkpoint_id), at
            )
            subtask = SubtaskId(other.operators[0].operator, 0)
            for part_at, part in logs.all(CheckpointPart, lambda p, n=other.checkpoint_id: p.checkpoint_id == n):  # type: ignore[misc]
                changed = tuple(
                    replace(s, event_ranges=(replace(s.event_ranges[0], begin=s.event_ranges[0].begin + 1),))
                    if SubtaskId(part.operator, s.subtask) == subtask
                    else s
                    for s in part.subtasks
                )
                logs.change(part_at, subtasks=changed)
            return Kind.BATCH, completed
    raise LookupError("no two batches in an epoch")


@damage("query")
def an_event_stands_between_the_marker_and_the_end_of_its_batch(logs: Logs) -> tuple[Kind, At]:
    for at, frame in logs.all(EventFrame):
        behind = At(at.partition, at.offset + 1)
        if behind.offset < logs.end[at.partition] and isinstance(marker := logs.at(behind), TriggerCheckpoint):
            prepared = {p.checkpoint_id for _, p in logs.all(CheckpointPrepared)}
            if marker.epoch == frame.epoch and marker.checkpoint_id in prepared:
                logs.swap(at, behind)
                return Kind.BATCH, behind
    raise LookupError("no marker behind a frame")


@pytest.mark.parametrize("kind", [EventFrame, TriggerCheckpoint, Notice, RecordFrame, Barrier])
def test_an_exact_copy_is_no_damage(kind: type) -> None:
    logs = healthy("data").copy()
    at, record = logs.last(kind)
    logs.append(at.partition, record)
    report = logs.audit()
    assert report.healthy, str(report)
    assert report.void[COPIES] == 1
