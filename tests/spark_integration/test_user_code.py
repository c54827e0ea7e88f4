"""How a job's code reaches Spark's workers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import types
from pathlib import Path

import pyspark
import pytest

from penstock import Job, Subtask
from penstock.spark_integration.user_code import pickled_operators, user_modules


def loaded(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_sparks_own_modules_are_not_the_users_where_spark_submit_brings_them_in_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "python" / "lib" / "pyspark.zip"
    monkeypatch.setattr(pyspark, "__path__", [str(archive / "pyspark")])
    sparks = loaded("pyspark.made_up", archive / "pyspark" / "made_up.py", monkeypatch)
    users = loaded("made_up_job", tmp_path / "made_up_job.py", monkeypatch)
    found = user_modules()
    assert users in found
    assert sparks not in found


def test_code_that_can_only_travel_by_name_is_said_to_need_the_module_on_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "made_up_job.py").write_text(
        "import threading\nimport penstock\nlock = threading.Lock()\n"
        "class Work(penstock.Subtask):\n    def poll(self):\n        return penstock.Idle() if lock else None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import made_up_job  # type: ignore[import-not-found]

    monkeypatch.setitem(sys.modules, "made_up_job", made_up_job)
    job = Job("travels")
    work: type[Subtask] = made_up_job.Work
    job.operator("works", subtask=work, parallelism=1)
    assert pickled_operators(job)["works"]
    (warning,) = caplog.messages
    assert "'works'" in warning and "--py-files" in warning and "cannot pickle" in warning


def test_a_dataclass_that_travels_by_value_keeps_which_of_its_fields_have_no_default(tmp_path: Path) -> None:
    """Else pydantic cannot check it in a worker."""

    @dataclasses.dataclass
    class Rule:
        name: str
        factor: float = 1.0

    class Works(Subtask):
        fields = dataclasses.fields(Rule)

    job = Job("travels")
    job.operator("works", subtask=Works, parallelism=1)
    worker = (
        "import dataclasses, pickle, sys; fields = pickle.load(sys.stdin.buffer).factory.fields;"
        "print([(f.default is dataclasses.MISSING, f.default_factory is dataclasses.MISSING) for f in fields])"
    )
    told = subprocess.run(
        [sys.executable, "-c", worker],
        input=pickled_operators(job)["works"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert told.stdout.decode().strip() == "[(True, True), (False, True)]"
