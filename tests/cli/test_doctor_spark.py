"""`penstock doctor --spark`: what a session with such settings would be like, before there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.doctor_spark import settings_of, spark_findings
from penstock.cli.exits import UsageError

GOOD = {
    "spark.master": "local[4,1000000]",
    "spark.python.worker.reuse": "false",
    "spark.python.daemon.module": "penstock.spark_integration.daemon",
    "spark.python.task.killTimeout": "100ms",
}
CLUSTER = {**GOOD, "spark.master": "yarn", "spark.task.maxFailures": "1000000"}


def states(settings: dict[str, str], subtasks: int | None = None) -> dict[str, str]:
    return {check: state for check, state, _, _ in spark_findings(settings, subtasks) if not check.endswith("Spark")}


def test_good_settings_lack_nothing() -> None:
    assert set(states(GOOD, 4).values()) == {"ok"}
    cluster = {**CLUSTER, "spark.executor.instances": "2", "spark.executor.cores": "2"}
    assert set(states(cluster, 4).values()) == {"ok"}


@pytest.mark.parametrize(
    ("changes", "subtasks", "check", "state"),
    [
        ({"spark.master": "local[4]"}, None, "retries", "advice"),
        ({"spark.master": "yarn"}, None, "retries", "missing"),
        ({"spark.speculation": "true"}, None, "spark.speculation", "missing"),
        ({"spark.dynamicAllocation.enabled": "TRUE"}, None, "spark.dynamicAllocation.enabled", "missing"),
        ({"spark.excludeOnFailure.enabled": "true"}, None, "spark.excludeOnFailure.enabled", "missing"),
        ({}, 5, "slots", "missing"),
        ({"spark.task.cpus": "none"}, None, "slots", "missing"),
        ({**CLUSTER, "spark.executor.instances": "2"}, 3, "slots", "missing"),
        ({**CLUSTER, "spark.executor.instances": "many"}, 3, "slots", "missing"),
        (CLUSTER, 3, "slots", "advice"),
        ({**CLUSTER, "spark.master": "spark://host:7077", "spark.cores.max": "4"}, 5, "slots", "missing"),
        ({"spark.decommission.enabled": "true"}, None, "spark.decommission.enabled", "advice"),
        ({"spark.python.worker.reuse": "true"}, None, "spark.python.worker.reuse", "advice"),
        (
            {"spark.python.worker.idleTimeoutSeconds": "60", "spark.python.worker.killOnIdleTimeout": "true"},
            None,
            "spark.python.worker.killOnIdleTimeout",
            "missing",
        ),
        (
            {"spark.task.reaper.enabled": "true", "spark.task.reaper.killTimeout": "60s"},
            None,
            "spark.task.reaper.killTimeout",
            "advice",
        ),
        ({"spark.sql.adaptive.enabled": "false"}, None, "spark.sql.adaptive.enabled", "advice"),
        ({"spark.remote": "sc://host"}, None, "master", "missing"),
    ],
)
def test_each_setting_that_is_not_good_is_found_alone(
    changes: dict[str, str], subtasks: int | None, check: str, state: str
) -> None:
    found = states({**GOOD, **changes}, subtasks)
    assert found[check] == state
    others = {name for name, is_ in found.items() if is_ != "ok"} - {check}
    assert others <= ({"slots"} if changes.get("spark.master") == "yarn" else set())


def test_a_remedy_comes_with_whatever_is_not_good() -> None:
    bad = {"spark.master": "yarn", "spark.speculation": "true", "spark.decommission.enabled": "true"}
    for check, state, found, remedy in spark_findings(bad, 4):
        assert state == "ok" or remedy or "Set it to" in found, check


def test_without_any_settings_it_is_about_a_plain_local_session() -> None:
    assert states({})["retries"] == "advice"


def test_settings_come_from_the_file_and_over_it_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# ours\n\nspark.master   yarn\nspark.task.maxFailures=7\nspark.extra  -Da=b -Dc=d\n")
    from_file = {"spark.master": "yarn", "spark.task.maxFailures": "7", "spark.extra": "-Da=b -Dc=d"}
    assert settings_of(None, file, []) == from_file
    assert settings_of("local[2]", file, ["spark.extra=x=y"]) == {
        **from_file, "spark.master": "local[2]", "spark.extra": "x=y",
    }  # fmt: skip
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert settings_of(None, None, []) == from_file
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert settings_of(None, file, [])["spark.remote"] == "sc://host"


def test_what_cannot_be_read_as_settings_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE"):
        settings_of(None, None, ["spark.speculation"])
    with pytest.raises(UsageError, match="cannot be read"):
        settings_of(None, tmp_path / "nowhere", [])
