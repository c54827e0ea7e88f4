"""`penstock compat`: safe or not, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.exits import Exit

from .conftest import Cli


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
