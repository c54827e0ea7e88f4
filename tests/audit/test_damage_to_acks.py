"""What acks, commands and a query's batches prove: damage to them is found at its place, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from penstock.audit import Kind
from penstock.schemas.acks import (
    BatchCommitted,
    BatchEventFrame,
    BatchEvents,
    BatchWanted,
    CheckpointAck,
    Heartbeat,
    OperatorEventFrame,
)
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPart
from penstock.schemas.data import Barrier
from penstock.schemas.events import EventFrame, TriggerCheckpoint
from penstock.schemas.ids import SubtaskId
from penstock.schemas.state import ChannelPosition, Segment

from .logs import At, Logs, acknowledged, at_place, simulated

SEEDS = {"replay": ("savepoints-replay", 6), "data": ("pair-backlog", 13), "query": ("query-1", 4)}

Edit = Callable[[Logs], tuple[Kind, At]]


@cache
def healthy(name: str) -> Logs:
    return simulated(*SEEDS[name])


def with_events(logs: Logs) -> tuple[At, CheckpointCompleted, At, BatchEvents]:
    """The newest batch that has sent something, with its manifest."""
    for at, header in reversed(list(logs.all(CheckpointCompleted))):
        for manifest_at, manifest in reversed(list(logs.all(BatchEvents))):
            counts = manifest.checkpoint_id == header.checkpoint_id and manifest_at.offset < header.acks_position
            if counts and any(writer.count for writer in manifest.writers):
                return at, header, manifest_at, manifest
    raise LookupError("no batch with events")


def an_inbox_begins_above_an_ack_of_its_checkpoint(logs: Logs) -> tuple[Kind, At]:
    at, header = acknowledged(logs)
    operators = tuple(replace(o, inbox_position=header.acks_position) for o in header.operators)
    logs.change(at, operators=operators)
    return Kind.ACK, at


def commands_count_as_executed_that_stand_above_the_decision(logs: Logs) -> tuple[Kind, At]:
    at, header = acknowledged(logs)
    logs.change(at, commands_position=header.acks_position + 1)
    return Kind.COMMAND, at


def a_heartbeat_takes_back_what_was_handled(logs: Logs) -> tuple[Kind, At]:
    for at, beat in logs.all(Heartbeat, lambda b: b.handled_through > 1):
        for behind, _ in logs.all(Heartbeat, lambda b, s=beat.sender: b.sender == s):  # type: ignore[misc]
            if behind.offset > at.offset:
                logs.change(behind, handled_through=beat.handled_through - 1)
                return Kind.HANDLED, behind
    raise LookupError("no two heartbeats")


def an_ack_takes_back_what_was_handled(logs: Logs) -> tuple[Kind, At]:
    for at, ack in logs.all(CheckpointAck, lambda a: a.handled_through > 1):
        for behind, other in logs.all(CheckpointAck, lambda a, s=ack.sender: a.sender == s):  # type: ignore[misc]
            if behind.offset > at.offset and other.checkpoint_id > ack.checkpoint_id:
                logs.change(behind, handled_through=ack.handled_through - 1)
                return Kind.HANDLED, behind
    raise LookupError("no two acks")


def a_record_stands_in_another_partition_than_its_key_says(logs: Logs) -> tuple[Kind, At]:
    at, _ = logs.last(EventFrame)
    logs.rekey(at, f"{at.partition.index + 1}:7")
    return Kind.KEY, at


def the_record_that_decided_a_batch_is_missing(logs: Logs) -> tuple[Kind, At]:
    _, header = logs.last(CheckpointCompleted)
    at = At(logs.partition("acks"), header.acks_position - 1)
    assert isinstance(logs.at(at), BatchCommitted | BatchWanted)
    logs.drop(at)
    return Kind.BATCH, at


def the_record_that_decided_a_batch_names_another(logs: Logs) -> tuple[Kind, At]:
    _, header = logs.last(CheckpointCompleted)
    at = At(logs.partition("acks"), header.acks_position - 1)
    logs.change(at, checkpoint_id=header.checkpoint_id + 1)
    return Kind.BATCH, at


def the_manifest_of_a_batch_is_missing(logs: Logs) -> tuple[Kind, At]:
    _, header, manifest_at, _ = with_events(logs)
    logs.drop(manifest_at)
    return Kind.BATCH, At(manifest_at.partition, header.acks_position - 1)


def the_manifest_of_a_batch_names_fewer_events(logs: Logs) -> tuple[Kind, At]:
    _, header, manifest_at, manifest = with_events(logs)
    logs.change(manifest_at, writers=tuple(replace(w, count=0) for w in manifest.writers))
    return Kind.BATCH, At(manifest_at.partition, header.acks_position - 1)


def the_last_frame_of_a_batch_writer_is_missing(logs: Logs) -> tuple[Kind, At]:
    _, _, manifest_at, manifest = with_events(logs)
    writer = next(w.writer for w in manifest.writers if w.count)
    at, _ = logs.last(BatchEventFrame, lambda f: f.writer == writer)
    logs.drop(at)
    return Kind.BATCH, manifest_at


def a_frame_to_the_coordinator_contradicts_itself(logs: Logs) -> tuple[Kind, At]:
    at, frame = logs.first(OperatorEventFrame, lambda f: f.count > 0)
    logs.change(at, lengths=frame.lengths + b"\x01\x00\x00\x00")
    return Kind.FRAME, at


DAMAGES: list[tuple[str, Edit]] = [
    ("replay", a_frame_to_the_coordinator_contradicts_itself),
    ("replay", an_inbox_begins_above_an_ack_of_its_checkpoint),
    ("data", an_inbox_begins_above_an_ack_of_its_checkpoint),
    ("query", an_inbox_begins_above_an_ack_of_its_checkpoint),
    ("replay", commands_count_as_executed_that_stand_above_the_decision),
    ("replay", a_heartbeat_takes_back_what_was_handled),
    ("replay", an_ack_takes_back_what_was_handled),
    ("replay", a_record_stands_in_another_partition_than_its_key_says),
    ("query", a_record_stands_in_another_partition_than_its_key_says),
    ("query", the_record_that_decided_a_batch_is_missing),
    ("query", the_record_that_decided_a_batch_names_another),
    ("query", the_manifest_of_a_batch_is_missing),
    ("query", the_manifest_of_a_batch_names_fewer_events),
    ("query", the_last_frame_of_a_batch_writer_is_missing),
]


@pytest.mark.parametrize(
    ("name", "edit"), DAMAGES, ids=[f"{name} {edit.__name__.replace('_', ' ')}" for name, edit in DAMAGES]
)
def test_damage_is_found_at_its_place(name: str, edit: Edit) -> None:
    logs = healthy(name).copy()
    kind, at = edit(logs)
    report = logs.audit()
    assert kind in {finding.kind for finding in at_place(report, at)}, f"wanted {kind} at {at}; {report}"


FAR = 10**12

BAD_ACKS: dict[str, dict[str, object]] = {
    "a channel that names no subtask": {"data_positions": (ChannelPosition("x", (Segment(0, FAR, 1, 0, 0),), 0),)},
    "a channel without an index": {"data_positions": (ChannelPosition("alpha/", (Segment(0, -1, 1, 0, 0),), 0),)},
    "a channel of an index in other digits": {"data_positions": (ChannelPosition("alpha/\u00b2", (), 0),)},
    "a range behind the end of its partition": {
        "event_ranges": (Segment(0, FAR, 1, 0, 0),), "event_position": FAR,
    },
    "a range before the beginning": {"event_ranges": (Segment(-FAR, -1, 1, 0, 0),)},
    "a position before the beginning": {"event_position": -FAR, "handled_through": -FAR},
}  # fmt: skip


@pytest.mark.parametrize("name", ["replay", "data"])
@pytest.mark.parametrize("fields", BAD_ACKS.values(), ids=BAD_ACKS)
def test_a_checkpoint_made_from_a_bad_ack_is_damage_and_no_error(name: str, fields: dict[str, object]) -> None:
    logs = healthy(name).copy()
    _, header = acknowledged(logs)
    subtask = SubtaskId(header.operators[-1].operator, 0)
    before = logs.change_snapshot(header.checkpoint_id, subtask, **fields)
    logs.change(At(logs.partition("acks"), before.ack_offset), **fields)
    report = logs.audit()
    assert not report.healthy


@pytest.mark.parametrize("marked", [True, False])
def test_a_batch_without_a_range_is_damage_and_no_error(marked: bool) -> None:
    logs = healthy("query").copy()
    _, header = logs.last(CheckpointCompleted)
    subtask = SubtaskId(header.operators[0].operator, 0)
    for at, part in logs.all(CheckpointPart, lambda p: p.checkpoint_id == header.checkpoint_id):
        changed = tuple(replace(s, event_ranges=()) if s.subtask == subtask.index else s for s in part.subtasks)
        logs.change(at, subtasks=changed)
    if not marked:
        for at, _ in list(logs.all(TriggerCheckpoint, lambda m: m.checkpoint_id == header.checkpoint_id)):
            logs.put(at, None, raw=b"garbage")
    assert not logs.audit().healthy


def test_data_records_of_no_subtask_are_no_error() -> None:
    logs = healthy("data").copy()
    at, barrier = logs.last(Barrier)
    logs.change(at, sender=replace(barrier.sender, subtask=-FAR, operator="x/y"))
    assert logs.audit().findings
