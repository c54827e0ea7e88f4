"""Avro schemas of the user's payloads: recorded, checked where a job goes on, told to subtasks (section 12)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.checkpoint_log.history import History
from penstock.checkpoint_log.restorability import schemas_needed_by
from penstock.coordinator.protocol.core import CoordinatorCore
from penstock.schemas.acks import RunStarted, SchemaDigest
from penstock.schemas.checkpoints import SchemaUsed
from penstock.schemas.errors import JobRefused
from penstock.schemas.events import Start, Stop, Welcome, WriterSchema
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.settings import JobSettings, OperatorSettings, Rescale, Restore
from penstock.schemas.status import Ending
from penstock.schemas.user_schemas import JSON, Subject, UserSchema, text_of
from penstock.schemas.versions import CURRENT

from .driver import S0, S1, Script, job_settings


def ride(*fields: str | dict[str, Any]) -> str:
    known = [f if isinstance(f, dict) else {"name": f, "type": "int"} for f in fields]
    return text_of({"type": "record", "name": "Ride", "fields": known})


V1 = ride("age")
V2 = ride("age", {"name": "note", "type": "string", "default": ""})
WIDER = ride({"name": "age", "type": "long"})
OTHER = ride({"name": "age", "type": "string"})


def written(text: str, *subjects: Subject, operator: str = "op") -> dict[str, Any]:
    return {"schemas": tuple(UserSchema(operator, s, text) for s in subjects or (Subject.EVENTS, Subject.STATE))}


def under(text: str, *subjects: Subject) -> JobSettings:
    return job_settings(**written(text, *subjects))


def says(text: str, *subjects: Subject) -> dict[str, Any]:
    """What an instance with these schemas says in its Hello."""
    digests = tuple(SchemaDigest(u.subject, u.digest) for u in written(text, *subjects)["schemas"])
    return {"schemas": digests}


def started(text: str, **changes: Any) -> Script:
    """A job under that schema whose two subtasks run under it."""
    script = Script.begun(**written(text), **changes)
    script.read(RunStarted("run-1", "here"))
    for subtask in script.settings.subtasks():
        script.hello(subtask, **says(text))
    script.read(*(task.heartbeat() for task in script.tasks.values()))
    return script


def recorded(script: Script) -> dict[tuple[str, str], tuple[int, int]]:
    """Epochs by subject and schema, as the log has them now."""
    found = script.job.history.schemas.values()
    return {(used.subject, used.schema): (used.first_epoch, used.last_epoch) for used in found}


def refused(script: Script, settings: JobSettings, match: str, **changes: Any) -> None:
    with pytest.raises(JobRefused, match=match):
        CoordinatorCore(settings, "second").handle(script.beginning(**changes), script.now)


def test_the_schemas_of_an_epoch_stand_in_the_transaction_that_claims_it() -> None:
    script = Script.begun(**written(V1))
    assert recorded(script) == {("events", V1): (1, 1), ("state", V1): (1, 1)}
    assert script.log[0][0] == "epoch"


def test_a_codec_without_a_schema_is_not_recorded() -> None:
    script = Script.begun(**written(JSON))
    assert script.committed(SchemaUsed) == []


def test_a_job_whose_schema_can_read_what_a_checkpoint_holds_goes_on_and_both_are_known() -> None:
    script = started(V1)
    script.checkpoint()
    script.restart(under(V2))
    assert recorded(script) == {
        ("events", V1): (1, 1),
        ("state", V1): (1, 1),
        ("events", V2): (2, 2),
        ("state", V2): (2, 2),
    }


def test_a_job_whose_schema_cannot_read_what_a_checkpoint_holds_is_refused_with_place_reason_and_ways_out() -> None:
    script = started(V1)
    n = script.checkpoint()
    match = (
        rf"checkpoint {n} of job job .*events of operator op: /age: int cannot be read as string;"
        r" state of operator op: /age: .*default.*alias.*another name.*--fresh"
    )
    refused(script, under(OTHER), match)


def test_avro_that_became_json_is_refused() -> None:
    script = started(V1)
    script.checkpoint()
    refused(script, under(JSON), "events of operator op: /: was Avro and is JSON")


def test_an_operator_that_is_gone_or_has_no_schema_any_more_is_not_judged() -> None:
    script = started(V1)
    script.checkpoint()
    script.restart(job_settings())
    assert script.epoch.number == 2


def test_a_fresh_start_and_one_without_a_checkpoint_need_no_old_schema() -> None:
    for restore in (Restore.LATEST, Restore.FRESH):
        script = started(V1)
        if restore is Restore.FRESH:
            script.checkpoint()
        script.write(RunStarted("run-2", "here"))
        script.restart(under(OTHER), restore=restore)
        assert script.epoch.number == 2
        assert recorded(script)["events", OTHER] == (2, 2)


def test_what_no_kept_checkpoint_was_written_under_is_forgotten_and_judged_no_more() -> None:
    script = started(V1)
    script.checkpoint()
    script.restart(under(V2))
    script.read(RunStarted("run-2", "here"))
    for subtask in (S0, S1):
        script.hello(subtask, "run-2", **says(V2))
    for _ in range(3):
        script.checkpoint()
    script.restart(under(V2), instance="third")
    assert set(recorded(script)) == {("events", V2), ("state", V2)}


def test_what_another_line_was_written_under_is_not_asked_of_a_derived_checkpoint() -> None:
    """A savepoint of before keeps its schema known; subtasks that are new have written nothing in any epoch."""
    script = started(V1)
    script.acknowledge(script.savepoint())
    script.write(RunStarted("run-2", "here"))
    rescaled = [OperatorSettings("op", n, rescale=Rescale.LIST) for n in (2, 3)]
    script.restart(job_settings(rescaled[0], **written(OTHER)), restore=Restore.FRESH)
    for subtask in script.settings.subtasks():
        script.hello(subtask, "run-2", **says(OTHER))
    script.checkpoint()
    script.write(RunStarted("run-3", "here"))
    for instance in ("third", "fourth"):
        script.restart(job_settings(rescaled[1], **written(OTHER)), instance=instance)
    derived = script.job.history.last
    assert derived is not None and derived.header.rescaled_from >= 0
    assert {used.schema for used in schemas_needed_by(script.job.history, derived)} == {OTHER}
    assert ("events", V1) in recorded(script), "the savepoint still needs it"


def test_what_was_dealt_in_an_epoch_between_is_asked_of_a_checkpoint_that_is_derived_again() -> None:
    """An operator that keeps its parallelism keeps states that were dealt, and so written, by another coordinator."""

    def layout(a: int, b: int) -> list[OperatorSettings]:
        return [OperatorSettings(name, n, rescale=Rescale.LIST) for name, n in (("op", a), ("other", b))]

    script = Script.running(*layout(2, 2), **written(V1))
    script.checkpoint()
    script.restart(job_settings(*layout(3, 2), **written(V2)))
    script.restart(job_settings(*layout(3, 3), **written(V1)), instance="third")
    derived = script.job.history.last
    assert derived is not None and derived.header.epoch == 3
    assert {used.schema for used in schemas_needed_by(script.job.history, derived)} == {V1, V2}


def test_a_savepoint_keeps_the_schema_it_was_written_under() -> None:
    """It can be gone back to, with the schema of then; a later schema that cannot read it still resumes the latest."""
    script = started(V1)
    script.acknowledge(savepoint := script.savepoint())
    script.restart(under(V2))
    script.read(RunStarted("run-2", "here"))
    for subtask in (S0, S1):
        script.hello(subtask, "run-2", **says(V2))
    for _ in range(3):
        script.checkpoint()
    script.restart(under(V2), instance="third")
    assert ("events", V1) in recorded(script)
    dropped = ride({"name": "years", "type": "int", "default": 0}, {"name": "note", "type": "int"})
    refused(script, under(dropped), "note: string cannot be read as int")
    core = CoordinatorCore(under(V1), "fourth")  # what was written later is not what it goes back to
    core.handle(script.beginning(restore=Restore.CHECKPOINT, restore_checkpoint=savepoint), script.now)


def test_an_instance_is_welcomed_and_told_what_it_may_read_and_does_not_write_itself() -> None:
    script = started(V1)
    script.checkpoint()
    script.restart(under(V2))
    script.read(RunStarted("run-2", "here"))
    script.forget()
    task = script.hello(S0, "run-2", **says(V2))
    kinds = [type(record) for record in script.appended(S0)]
    assert kinds == [Welcome, WriterSchema, WriterSchema, Start]
    assert [(w.attempt, w.nonce, w.protocol) for w in script.records(S0, Welcome)[-1:]] == [
        (task.attempt, task.nonce, CURRENT.protocol)
    ]
    told = [(r.operator, r.subject, r.schema) for r in script.appended(S0) if isinstance(r, WriterSchema)]
    assert told == [("op", "events", V1), ("op", "state", V1)]


def test_a_receiver_is_told_what_the_operators_before_it_emitted() -> None:
    up, down = (
        OperatorSettings("up", 1),
        OperatorSettings("down", 1, inputs=(InputSettings("up", Partitioning.REBALANCE),)),
    )
    script = Script.begun(up, down, **written(V1, Subject.OUTPUT, operator="up"))
    script.read(RunStarted("run-1", "here"))
    receiver, sender = script.settings.subtasks()[1], script.settings.subtasks()[0]
    script.hello(sender, schemas=(SchemaDigest("output", UserSchema("up", Subject.OUTPUT, V1).digest),))
    script.hello(receiver)
    assert [r.schema for r in script.records(receiver, WriterSchema)] == [V1]
    assert script.records(sender, WriterSchema) == []


def test_old_tasks_go_on_under_a_new_coordinator_where_both_can_read_each_other() -> None:
    """A rolling upgrade: nothing is counted against the restart budget, and their schema stays known."""
    script = started(V1)
    script.checkpoint()
    script.restart(under(V2))
    for subtask in (S0, S1):
        script.hello(subtask, **says(V1))
    assert len(script.job.live()) == 2
    assert recorded(script)["events", V1] == (1, 2)
    assert script.job.statistics.region_failovers == 0
    script.checkpoint()
    script.checkpoint()
    script.restart(under(V2), instance="third")
    assert recorded(script)["state", V1] == (1, 2), "the tasks of this run may still be of the old file"


@pytest.mark.parametrize("new", [WIDER, OTHER])
def test_old_tasks_that_could_not_read_the_new_coordinator_end_the_job_at_once_with_one_reason(new: str) -> None:
    script = started(V1)
    script.restart(under(new))  # there is no checkpoint to be read, but their Hellos wait
    assert script.ended is not None and script.ended.ending is Ending.FAILED
    assert "/age: " in script.ended.cause and "op/0" in script.ended.cause and "older job file" in script.ended.cause
    assert script.records(S0, Stop)[-1].reason == script.ended.cause
    assert not script.records(S0, Start)[1:]


def test_avro_tasks_under_a_coordinator_whose_file_says_json_end_the_job_at_once() -> None:
    script = started(V1)
    script.restart(under(JSON))
    assert script.ended is not None and script.ended.ending is Ending.FAILED
    assert "was Avro and is JSON" in script.ended.cause and "older job file" in script.ended.cause


def test_tasks_of_a_newer_file_than_the_coordinators_are_refused_and_told_what_to_start_first() -> None:
    script = Script.begun(**written(V1))
    script.read(RunStarted("run-1", "here"))
    script.hello(S0, **says(V2))
    assert script.ended is not None and script.ended.ending is Ending.FAILED
    assert "newer job file. Start the coordinator with that file first" in script.ended.cause


def test_a_restart_of_the_same_file_commits_no_more_than_it_must() -> None:
    script = started(V1)
    before = len(script.committed(SchemaUsed))
    script.hello(S0, **says(V1))
    assert len(script.committed(SchemaUsed)) == before
    assert before == 4, "once with the epoch, once with the run: two subjects each"


def test_the_log_read_again_says_what_the_coordinator_knew() -> None:
    script = started(V1)
    script.checkpoint()
    assert History.of(script.log).schemas == script.job.history.schemas
