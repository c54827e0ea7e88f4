"""What ``exactly_once`` makes of what Spark knows of a batch; the JVM's objects are the tests' own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from penstock.schemas.errors import ConfigurationError, JobRefused
from penstock.schemas.status import BatchPartition
from penstock.spark_integration import exactly_once
from penstock.spark_integration.streaming.batch_events import BatchOutbox, EventsTarget
from penstock.spark_integration.streaming.batch_token import BatchToken
from penstock.spark_integration.streaming.foreach_batch import Batch
from penstock.spark_integration.streaming.offsets import StreamOffset
from penstock.spark_integration.streaming.running_batch import penstock_batch, running_batch

QUERY = "5ca867ef-856e-4c34-9715-80b88e5e6a1d"
SOURCE = {"job": "flights", "operator": "reader", "kafka.bootstrap.servers": "broker:9092"}


def offset(checkpoint: int, previous: int = -1, job: str = "penstock.flights", history: str = "h") -> str:
    parts = (BatchPartition(0, 5, 0), BatchPartition(0, 7, 0))
    return json.dumps(StreamOffset(job, "reader", history, checkpoint, previous, 1, parts).to_dict())


class Seq(list[Any]):
    """A Scala sequence through py4j."""

    def size(self) -> int:
        return len(self)

    def apply(self, at: int) -> Any:
        return self[at]


class Given:
    """Answers every call by the value that it was given under that name; a Scala option, a plan, a query."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, lambda *_, value=value: value)


class Source(Given):
    def equals(self, other: object) -> bool:
        return self is other


def option(value: Any) -> Given:
    return Given(isDefined=value is not None, get=value)


class Log:
    def __init__(self, batches: Mapping[int, list[str | None]]) -> None:
        self.batches = batches

    def get(self, batch_id: int) -> Given:
        stored = self.batches.get(batch_id)
        if stored is None:
            return option(None)
        offsets = Seq(option(None if text is None else Given(json=text)) for text in stored)
        return option(Given(offsets=offsets))


class Frame:
    """A DataFrame as foreachBatch gets it, of a query with these sources."""

    def __init__(
        self,
        batches: Mapping[int, list[str | None]],
        options: list[Mapping[str, str]] | None = None,
        batch_id: int = 1,
        properties: Mapping[str, str] | None = None,
        run: str = "run-1",
    ) -> None:
        sources = Seq(Source() for _ in next(iter(batches.values())))
        leaves = Seq(
            Given(relation=Given(options=Given(asCaseSensitiveMap=given)))
            for given in ([SOURCE] if options is None else options)
        )
        self.execution = Given(
            sources=sources,
            offsetLog=Log(batches),
            logicalPlan=Given(collectLeaves=Seq([Given(), *leaves])),
            minLogEntriesToMaintain=100,
            runId=Given(toString=run),
        )
        self.queries: dict[str, Any] = {QUERY: self.execution}
        given = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": str(batch_id)}
        local = given if properties is None else properties

        class Jvm:
            class java:
                class util:
                    UUID = Given(fromString=QUERY)

        class Context:
            _jvm = Jvm
            version = "4.3.0"
            getLocalProperty = staticmethod(local.get)

        class Session:
            sparkContext = Context
            _jsparkSession = Given(sharedState=Given(activeStreamingQueries=self.queries))

        self.sparkSession = Session


def batch_of(frame: Frame, batch_id: int = 1, **options: Any) -> Batch:
    found: list[Batch] = []
    any_frame: Any = frame
    exactly_once(lambda df, batch: found.append(batch), **options)(any_frame, batch_id)
    return found[0]


@pytest.fixture(autouse=True)
def finished(monkeypatch: pytest.MonkeyPatch) -> list[EventsTarget]:
    """To whom batches have written their manifests; there is no broker."""
    targets: list[EventsTarget] = []
    monkeypatch.setattr(BatchOutbox, "finish", lambda outbox: targets.append(outbox.target))
    return targets


def test_a_batch_is_named_by_what_spark_has_stored() -> None:
    batch = batch_of(Frame({0: [offset(3)], 1: [offset(4, 3)]}))
    assert batch.token == BatchToken("penstock.flights", "reader", 4, 1, QUERY, "h")
    assert (batch.batch_id, batch.checkpoint_id, batch.has_events) == (1, 4, True)
    assert str(batch.token) == f"{batch.token.stream}.c4.b1"


def test_every_run_of_a_batch_has_one_token_and_no_other_batch_has_it() -> None:
    def token(batches: Mapping[int, list[str | None]], batch_id: int = 1) -> str:
        return str(batch_of(Frame(batches, batch_id=batch_id), batch_id).token)

    first = token({0: [offset(3)], 1: [offset(4, 3)]})
    assert first == token({0: [offset(3)], 1: [offset(4, 3)]})
    others = {
        token({0: [offset(4)]}, 0),
        token({1: [offset(4)], 2: [offset(4)]}, 2),
        token({0: [offset(3)], 1: [offset(5, 3)]}),
        token({0: [offset(3)], 1: [offset(4, 3, history="purged")]}),
    }
    assert first not in others
    assert len(others) == 4


def test_a_token_is_part_of_file_names_and_of_transaction_ids() -> None:
    token = BatchToken("penstock.flights", "reader", -1, 7, QUERY, "a/b+c=")
    assert set(str(token)) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert token.place_of(f"{token}.manifest") == (7, token.checkpoint_id)
    assert token.place_of(f"part-00000.{token}.parquet") is None


def test_a_batch_in_which_only_another_source_had_rows_has_no_events() -> None:
    rate = {"rowsPerSecond": "5"}
    batch = batch_of(Frame({0: ["5", offset(4)], 1: ["9", offset(4)]}, [rate, SOURCE]))
    assert not batch.has_events
    frame: Any = None
    with pytest.raises(ConfigurationError, match=r"batch 1 of job penstock\.flights has no checkpoint of its own"):
        batch.send_to_coordinator(frame)


def test_the_first_batch_has_events_where_the_job_has_a_checkpoint() -> None:
    assert batch_of(Frame({0: [offset(3)]}, batch_id=0), 0).has_events
    assert not batch_of(Frame({0: [offset(-1)]}, batch_id=0), 0).has_events


def test_a_dataframe_that_is_used_twice_is_one_source() -> None:
    frame = Frame({0: [offset(3), offset(3)], 1: [offset(4, 3), offset(4, 3)]}, [SOURCE, SOURCE])
    (one, _) = frame.execution.sources()  # type: ignore[attr-defined]
    frame.execution.sources = lambda: Seq([one, one])  # type: ignore[attr-defined]
    assert batch_of(frame).checkpoint_id == 4


def test_two_sources_of_one_job_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"has 2 penstock sources of job penstock\.flights.*read the stream once"
    ):
        batch_of(Frame({1: [offset(4, 3), offset(5, 3)]}))


def test_a_query_without_our_source_is_refused() -> None:
    for stored in ("5", "null", '{"n": 3}', None):
        with pytest.raises(ConfigurationError, match="found no penstock source in the query"):
            batch_of(Frame({1: [stored]}, [{"rowsPerSecond": "5"}]))


def test_of_several_jobs_one_names_the_batches() -> None:
    other = SOURCE | {"job": "trains", "prefix": "test"}
    stored: list[str | None] = [offset(4, 3), offset(9, 8, "test.trains")]
    with pytest.raises(ConfigurationError, match=r"reads several jobs \(penstock\.flights, test\.trains\)"):
        batch_of(Frame({1: stored}, [other, SOURCE]))
    for job in ("trains", "test.trains"):
        assert batch_of(Frame({1: stored}, [other, SOURCE]), job=job).checkpoint_id == 9
    with pytest.raises(ConfigurationError, match=r"job='ships'\): the query reads penstock\.flights, test\.trains"):
        batch_of(Frame({1: stored}, [other, SOURCE]), job="ships")


def test_events_go_where_the_source_comes_from(finished: list[EventsTarget]) -> None:
    options = SOURCE | {"kafka.sasl.username": "u", "eventSchema": '{"type": "string"}', "maxHeldBytes": "1000"}
    batch_of(Frame({1: [offset(4, 3)]}, [options]))
    (target,) = finished
    assert (target.acks_topic, target.operator, target.checkpoint_id, target.parallelism, target.bytes_max) == (
        "penstock.flights.acks", "reader", 4, 2, 1_000,
    )  # fmt: skip
    assert target.event_schema == '{"type": "string"}'
    transport = target.make_transport()
    assert transport.config.bootstrap == "broker:9092"
    assert transport.config.client_settings == {"sasl.username": "u"}


def test_a_manifest_is_written_where_something_was_sent_or_an_earlier_run_may_have(
    monkeypatch: pytest.MonkeyPatch, finished: list[EventsTarget]
) -> None:
    monkeypatch.setattr(BatchOutbox, "send", lambda *_: 1)
    sends = {3}
    any_frame: Any = None
    on_batch = exactly_once(
        lambda df, batch: batch.send_to_coordinator(any_frame) if batch.checkpoint_id in sends else None
    )
    stored = {n: [offset(n, n - 1)] for n in range(1, 6)}
    for batch_id, run in ((1, "run-1"), (2, "run-1"), (3, "run-1"), (4, "run-2"), (5, "run-2")):
        frame: Any = Frame(stored, batch_id=batch_id, run=run)
        on_batch(frame, batch_id)
    assert [target.checkpoint_id for target in finished] == [1, 3, 4]


def test_a_function_that_raises_names_nothing(monkeypatch: pytest.MonkeyPatch, finished: list[EventsTarget]) -> None:
    monkeypatch.setattr(BatchOutbox, "send", lambda *_: 1)

    def fails(df: Any, batch: Batch) -> None:
        batch.send_to_coordinator(df)
        raise LookupError("on purpose")

    frame: Any = Frame({1: [offset(4, 3)]})
    with pytest.raises(LookupError):
        exactly_once(fails)(frame, 1)
    assert finished == []


def test_options_that_the_plan_does_not_show_are_missed() -> None:
    with pytest.raises(JobRefused, match="does not show the options of its penstock source"):
        batch_of(Frame({1: [offset(4, 3)]}, [SOURCE | {"job": "trains"}]))


def test_outside_of_a_batch_it_is_refused() -> None:
    stored = {1: [offset(4, 3)]}
    with pytest.raises(ConfigurationError, match="outside of a batch"):
        batch_of(Frame(stored, properties={}))
    with pytest.raises(ConfigurationError, match="for batch 2, and Spark runs batch 1"):
        batch_of(Frame(stored), 2)
    with pytest.raises(ConfigurationError, match="whose offsets Spark has not stored"):
        batch_of(Frame(stored, batch_id=5), 5)
    frame = Frame(stored)
    frame.queries.clear()
    with pytest.raises(ConfigurationError, match="which does not run any more"):
        batch_of(frame)


def test_spark_connect_is_refused() -> None:
    class Remote:
        sparkSession = object()

    with pytest.raises(JobRefused, match=r"Remote, whose query it cannot see: it needs classic PySpark.*SPARK_REMOTE"):
        running_batch(Remote(), 1)


def test_a_spark_that_is_built_otherwise_is_named() -> None:
    frame = Frame({1: [offset(4, 3)]})
    del frame.execution.offsetLog  # type: ignore[attr-defined]
    with pytest.raises(JobRefused, match=r"this Spark \(4\.3\.0\) does not show the offsets of batch 1.*offsetLog"):
        running_batch(frame, 1)


def test_what_is_no_function_is_refused_at_once() -> None:
    nothing: Any = None
    with pytest.raises(ConfigurationError, match="takes a function of a DataFrame and a batch"):
        exactly_once(nothing)


def test_a_second_write_to_a_folder_needs_a_name(tmp_path: Path) -> None:
    class Writer:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **options: Path(args[0][7:]).mkdir() if name == "save" else self

    class Rows:
        write = Writer()

        class sparkSession:
            class sparkContext:
                applicationId, master = "app", "local[2]"

    rows: Any = Rows()
    batch = batch_of(Frame({1: [offset(4, 3)]}))
    batch.write_files(rows, tmp_path)
    batch.write_files(rows, tmp_path, name="late")
    batch.write_files(rows, tmp_path / "other")
    with pytest.raises(ConfigurationError, match="a second time under the name 'late'"):
        batch.write_files(rows, tmp_path, name="late")
    with pytest.raises(ConfigurationError, match=r"a second time: give each write_files a name"):
        batch.write_files(rows, f"file://{tmp_path}")


def test_the_recipes_of_the_page_name_the_batch() -> None:
    page = (Path(__file__).parents[3] / "docs" / "exactly-once-batches.md").read_text(encoding="utf-8")
    delta, iceberg = (
        next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if word in block)
        for word in ("txnAppId", "snapshot-property")
    )
    batch = batch_of(Frame({0: [offset(3)], 1: [offset(4, 3)]}))
    for recipe, kind, expected in (
        (delta, "options", {"txnAppId": batch.token.stream, "txnVersion": 1}),
        (iceberg, "option", ("snapshot-property.penstock-batch", str(batch.token))),
    ):
        rows = MagicMock()
        names: dict[str, Any] = {"spark": MagicMock()}
        exec(recipe, names)
        names["write"](rows, batch)
        calls = [call for call in rows.mock_calls if call[0].endswith(f".{kind}")]
        assert [call.kwargs or call.args for call in calls] == [expected]


def test_the_parts_of_a_batch_are_plain_data() -> None:
    frame: Any = Frame({0: [offset(3)], 1: [offset(4, 3)]})
    running = running_batch(frame, 1)
    assert (running.query_id, running.batch_id, running.batches_retained) == (QUERY, 1, 100)
    ours = penstock_batch(running)
    assert ours.begin is not None
    assert (ours.begin.checkpoint, ours.end.checkpoint, len(ours.end.partitions)) == (3, 4, 2)
