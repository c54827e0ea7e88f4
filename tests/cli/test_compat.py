"""`penstock compat`: safe or not, and why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker import EmbeddedBroker
from penstock.checkpoint_log.history import History, keyed
from penstock.cli.compat import Verdict, verdicts
from penstock.cli.exits import Exit
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPart, EpochClaimed, SchemaUsed, SubtaskSnapshot
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.user_schemas import Subject, UserSchema, text_of
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport

from .conftest import Cli, Counting, Waiting


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Ride", "fields": list(fields)}


AGE = {"name": "age", "type": "int"}
NOTE = {"name": "note", "type": "string"}
OLD = record(AGE)


@pytest.fixture
def files(tmp_path: Path) -> Any:
    def write(old: Any, new: Any) -> tuple[Path, Path]:
        for name, schema in (("old.avsc", old), ("new.avsc", new)):
            (tmp_path / name).write_text(json.dumps(schema))
        return tmp_path / "old.avsc", tmp_path / "new.avsc"

    return write


def test_a_new_field_with_a_default_is_safe_both_ways(cli: Cli, files: Any) -> None:
    ran = cli("compat", *files(OLD, record(AGE, {**NOTE, "default": ""})), "--rolling")
    assert ran.code == Exit.DONE
    assert ran.out.splitlines()[-1] == "safe"


def test_a_new_field_without_a_default_is_named_and_the_exit_code_says_not_safe(cli: Cli, files: Any) -> None:
    ran = cli("compat", *files(OLD, record(AGE, NOTE)))
    assert ran.code == Exit.UNSAFE
    assert "  /note: the writer does not have this field, and it has no default" in ran.out.splitlines()
    assert ran.out.splitlines()[-1] == "not safe"


def test_a_widened_type_is_safe_to_resume_with_and_not_while_old_tasks_go_on(cli: Cli, files: Any) -> None:
    both = files(OLD, record({"name": "age", "type": "long"}))
    resumed, rolling = cli("compat", *both), cli("compat", *both, "--rolling")
    assert (resumed.code, rolling.code) == (Exit.DONE, Exit.UNSAFE)
    assert "but not while old tasks go on" in resumed.out
    assert "  /age: long cannot be read as int" in rolling.out


def test_programs_get_both_directions_with_path_and_reason(cli: Cli, files: Any) -> None:
    ran = cli("compat", *files(OLD, record({"name": "age", "type": "string"})), "--json")
    assert ran.code == Exit.UNSAFE
    assert ran.json == {
        "safe": False,
        "rolling": False,
        "backward": {"safe": False, "problems": [{"path": "/age", "reason": "int cannot be read as string"}]},
        "forward": {"safe": False, "problems": [{"path": "/age", "reason": "string cannot be read as int"}]},
    }


def test_what_is_no_schema_or_no_file_is_wrong_usage(cli: Cli, files: Any, tmp_path: Path) -> None:
    old, new = files(OLD, {"type": "nonsense"})
    assert cli("compat", old, new).code == Exit.USAGE
    missing = cli("compat", old, tmp_path / "nowhere.avsc")
    assert (missing.code, len(missing.err.splitlines())) == (Exit.USAGE, 1)
    assert "nowhere.avsc cannot be read: No such file" in missing.err
    old.write_text("{")
    assert "it is no JSON" in cli("compat", old, old).err


# ---- a job's record and its file


def history(*used: SchemaUsed, checkpoints: dict[int, int]) -> History:
    """A job in epoch 3 whose checkpoints were completed in these epochs."""
    records: list[Any] = list(used)
    for n, epoch in checkpoints.items():
        snapshot = SubtaskSnapshot(0, 1, epoch, 0, 2, None, 0, (), 0, 0, (), False)
        records += [
            CheckpointPart(n, 0, "riders", (snapshot,)),
            CheckpointCompleted(epoch, n, False, 0, 0, 1, (), 0, (), n + 10),
        ]
    claimed = EpochClaimed(3, max(checkpoints, default=-1), 50, 60, {}, "i", "because")
    return History.of(keyed(*records, claimed))


def under(schema: Any, first: int, last: int, operator: str = "riders") -> SchemaUsed:
    return SchemaUsed(operator, "state", text_of(schema), first, last, "run")


def file_with(schema: Any) -> JobSettings:
    return JobSettings(
        "rides", (OperatorSettings("riders", 1),), schemas=(UserSchema("riders", Subject.STATE, text_of(schema)),)
    )


def only(settings: JobSettings, recorded: History) -> Verdict:
    (verdict,) = verdicts(settings, recorded)
    return verdict


WIDE = record({"name": "age", "type": "long"})


def test_what_the_newest_checkpoint_holds_decides_whether_a_job_can_be_resumed() -> None:
    needed = only(file_with(record(AGE, NOTE)), history(under(OLD, 1, 1), checkpoints={5: 1}))
    assert (needed.checkpoints, needed.resumed, needed.safe(rolling=False)) == ([5], True, False)
    older = only(file_with(record(AGE, NOTE)), history(under(OLD, 1, 1), checkpoints={5: 1, 6: 2}))
    assert (older.checkpoints, older.resumed, older.safe(rolling=False)) == ([5], False, True)


def test_only_what_is_in_use_now_matters_to_a_rolling_upgrade() -> None:
    now = only(file_with(WIDE), history(under(OLD, 1, 3), checkpoints={5: 2}))
    assert (now.in_use, now.safe(rolling=False), now.safe(rolling=True)) == (True, True, False)
    before = only(file_with(WIDE), history(under(OLD, 1, 2), checkpoints={5: 2}))
    assert (before.in_use, before.safe(rolling=True)) == (False, True)


def test_an_operator_that_is_gone_and_a_codec_without_a_schema_are_told_and_not_judged() -> None:
    gone = only(file_with(OLD), history(under(OLD, 1, 3, operator="gone"), checkpoints={}))
    assert gone.safe(rolling=True) and "no such operator" in gone.note
    plain = JobSettings("rides", (OperatorSettings("riders", 1),))
    assert "nothing to check" in only(plain, history(under(OLD, 1, 3), checkpoints={})).note


FILE = """
import penstock

job = penstock.Job("{name}")
job.operator("waiters", parallelism=2, subtask=penstock.Subtask, coordinator=penstock.OperatorCoordinator,
             codec={schema!r}, state_codec="json")
"""


@pytest.mark.kafka
def test_a_job_on_a_broker_is_compared_with_its_new_file(
    cli: Cli, transport: KafkaTransport, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    name = "compat-rides"
    job = penstock.Job(name, checkpoint=penstock.CheckpointSettings(interval=0.1))
    job.operator("waiters", coordinator=Counting, subtask=Waiting, parallelism=2, codec=OLD, state_codec="json")
    with LocalJob(job, transport) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, 30)
    files = {}
    for version, schema in (("wider", WIDE), ("broken", record(AGE, NOTE))):
        files[version] = tmp_path / f"{version}_compat_job.py"
        files[version].write_text(FILE.format(name=name, schema=schema))
    broker = ("--broker", kafka_broker.bootstrap)
    safe = cli("compat", name, files["wider"], *broker)
    assert safe.code == Exit.DONE
    assert re.search(r"waiters: events \(epoch \d+; checkpoints: ", safe.out)
    assert "but not while old tasks go on" in safe.out
    broken = cli("compat", name, files["broken"], *broker, "--json")
    assert broken.code == Exit.UNSAFE
    (told,) = broken.json["recorded"]
    assert (told["operator"], told["subject"], told["resumed"]) == ("waiters", "events", True)
    assert [p["path"] for p in told["backward"]["problems"]] == ["/note"]
    assert cli("compat", "no-such-job", files["wider"], *broker).code == Exit.USAGE
    assert cli("run", files["broken"], *broker).code == Exit.FAILED
