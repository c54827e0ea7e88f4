"""What `penstock doctor --spark` says of a session's settings, without a session.

The rules that a run is refused by (:mod:`.session_checks`) are applied here one by one, and joined by those that only
cost time, or that only some jobs need.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from ..schemas.errors import ConfigurationError, PenstockError
from .session import DAEMON_MODULE
from .session_checks import (
    SessionFacts,
    announced_slots,
    refuse_settings,
    refused_settings,
    require_retries,
    without_retries,
)


class Verdict(StrEnum):
    OK = "ok"
    ADVICE = "advice"
    """Works, but."""
    MISSING = "missing"
    """A run would be refused, or would not survive."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that was looked at."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def examine(facts: SessionFacts, subtasks: int | None = None) -> Iterator[Advice]:
    """Everything that is known about these settings; ``subtasks`` is how many a job has in all."""
    yield _master(facts)
    if (warning := without_retries(facts)) is not None:
        yield Advice("retries", Verdict.ADVICE, warning)
    else:
        yield _refused("retries", facts, require_retries, "enough")
    for name in refused_settings():
        alone = {name: facts.conf[name]} if name in facts.conf else {}
        yield _refused(name, replace(facts, conf=alone), refuse_settings, facts.conf.get(name, "false"))
    yield from _slots(facts, subtasks)
    yield from _decommissioning(facts.conf)
    yield from _python_workers(facts.conf)
    yield _adaptive(facts.conf)
    yield _package("pyarrow", (18,), None, "DataFrames as inputs, Structured Streaming, results in Parquet")
    yield _package("pandas", (2, 2), (3,), "Structured Streaming")


def _refused(check: str, facts: SessionFacts, rule: Callable[[SessionFacts], None], fine: str) -> Advice:
    try:
        rule(facts)
    except PenstockError as error:
        return Advice(check, Verdict.MISSING, str(error))
    return Advice(check, Verdict.OK, fine)


def _on(conf: Mapping[str, str], name: str, default: bool = False) -> bool:
    return conf.get(name, str(default)).strip().lower() == "true"


def _master(facts: SessionFacts) -> Advice:
    if facts.master.startswith("sc:") or "spark.remote" in facts.conf:
        return Advice(
            "master", Verdict.MISSING, f"{facts.conf.get('spark.remote', facts.master)} is Spark Connect",
            "long-running tasks need classic Spark: a master, and no spark.remote nor SPARK_REMOTE",
        )  # fmt: skip
    return Advice("master", Verdict.OK, facts.master)


def _slots(facts: SessionFacts, subtasks: int | None) -> Iterator[Advice]:
    try:
        available, where = announced_slots(facts)
        if available is None:
            available, where = _configured_slots(facts)
    except ConfigurationError as error:
        yield Advice("slots", Verdict.MISSING, str(error))
        return
    if available is None:
        yield Advice(
            "slots", Verdict.ADVICE, f"master {facts.master} does not say how many there are",
            "a run counts the executors that have registered, for up to 30 s, and is refused where they are too few",
        )  # fmt: skip
    elif subtasks is not None and available < subtasks:
        yield Advice(
            "slots", Verdict.MISSING, f"{available} ({where}), and {subtasks} subtasks need one each, all at once",
            "more cores or executors, less parallelism, or spark.task.cpus below 1 (0.25 packs four onto a core)",
        )  # fmt: skip
    else:
        yield Advice("slots", Verdict.OK, f"{available} ({where})")


def _configured_slots(facts: SessionFacts) -> tuple[int | None, str]:
    """What the cluster is asked for, which it need not give."""
    conf = facts.conf
    try:
        if facts.master.startswith("spark:") and "spark.cores.max" in conf:
            cores = int(conf["spark.cores.max"])
            return int(Decimal(cores) // facts.task_cpus), f"spark.cores.max {cores}"
        if "spark.executor.instances" in conf:
            executors, cores = int(conf["spark.executor.instances"]), int(conf.get("spark.executor.cores", "1"))
            return executors * facts.slots(cores), f"{executors} executors with {cores} core(s)"
    except ValueError as error:
        raise ConfigurationError(
            f"spark.cores.max, spark.executor.instances and spark.executor.cores must be whole numbers: {error}"
        ) from error
    return None, ""


def _decommissioning(conf: Mapping[str, str]) -> Iterator[Advice]:
    name = "spark.decommission.enabled"
    if _on(conf, name):
        yield Advice(
            name, Verdict.ADVICE, "true",
            "an executor that is decommissioned waits for its tasks, and long-running ones do not end: they are killed"
            " when the cluster's patience does, and come back elsewhere from the last checkpoint",
        )  # fmt: skip
    else:
        yield Advice(name, Verdict.OK, "false: an executor that leaves is a lost one, and its subtasks come back")


def _python_workers(conf: Mapping[str, str]) -> Iterator[Advice]:
    reuse = _on(conf, "spark.python.worker.reuse", True)
    yield Advice(
        "spark.python.worker.reuse", Verdict.ADVICE if reuse else Verdict.OK, str(reuse).lower(),
        "'false' leaves nothing of one subtask (modules' state, clients, threads) to the next task" * reuse,
    )  # fmt: skip
    idle = conf.get("spark.python.worker.idleTimeoutSeconds", "0").strip() not in ("", "0", "0s")
    if idle and _on(conf, "spark.python.worker.killOnIdleTimeout"):
        yield Advice(
            "spark.python.worker.killOnIdleTimeout", Verdict.MISSING, "true",
            "a subtask that waits for events is no dead one: set it to 'false', heartbeats show which is dead",
        )  # fmt: skip
    daemon = conf.get("spark.python.daemon.module", "pyspark.daemon")
    if daemon != DAEMON_MODULE:
        yield Advice(
            "spark.python.daemon.module", Verdict.ADVICE, daemon,
            f"{DAEMON_MODULE} halves the time until a killed worker's successor begins, where workers have penstock"
            " installed",
        )  # fmt: skip
    if "spark.python.task.killTimeout" not in conf:
        yield Advice(
            "spark.python.task.killTimeout", Verdict.ADVICE, "not set (2s)",
            "100ms lets cancelled and killed subtasks end at once",
        )  # fmt: skip
    if _on(conf, "spark.task.reaper.enabled") and conf.get("spark.task.reaper.killTimeout", "-1") != "-1":
        yield Advice(
            "spark.task.reaper.killTimeout", Verdict.ADVICE, conf["spark.task.reaper.killTimeout"],
            "a killed subtask that ends late takes its whole executor along, with all subtasks there",
        )  # fmt: skip


def _adaptive(conf: Mapping[str, str]) -> Advice:
    name = "spark.sql.adaptive.enabled"
    if _on(conf, name, True):
        return Advice(name, Verdict.OK, "true")
    return Advice(
        name, Verdict.ADVICE, "false",
        "the shuffles of a DataFrame that is an input run when the job has begun, within its start_timeout, in place of"
        " before it",
    )  # fmt: skip


def _package(name: str, least: tuple[int, ...], below: tuple[int, ...] | None, needed_for: str) -> Advice:
    wanted = f"{name}>={'.'.join(map(str, least))}" + (f",<{'.'.join(map(str, below))}" if below else "")
    remedy = f"pip install '{wanted}', here and in the workers' Python: needed for {needed_for}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Advice(f"{name} for Spark", Verdict.ADVICE, "not installed", remedy)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    fits = numbers >= least and (below is None or numbers < below)
    return Advice(f"{name} for Spark", Verdict.OK if fits else Verdict.ADVICE, version, "" if fits else remedy)
