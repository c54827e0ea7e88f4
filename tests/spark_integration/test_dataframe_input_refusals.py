"""What cannot be a long-running operator's input is refused before anything is started, with why and the way out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from penstock import Idle, Job, Subtask
from penstock.schemas.errors import ConfigurationError, JobError, JobRefused
from penstock.spark_integration import DataFrameInput, read_results, run, spread
from penstock.spark_integration.dataframe_input import HASH_COLUMN, prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Taking(Subtask):
    def process_rows(self, batch: Any) -> None: ...


class Polling(Taking):
    def poll(self) -> Idle:
        return Idle()


def job(subtask: Callable[[], Subtask] = Taking, parallelism: int = 2) -> Job:
    made = Job("refused")
    made.operator("reader", subtask=subtask, parallelism=parallelism)
    return made


def numbers(spark: SparkSession, partitions: int = 2) -> DataFrame:
    return spark.range(0, 1000, 1, partitions).withColumn("text", F.concat(F.lit("x"), F.col("id")))


def read(spark: SparkSession, df: DataFrame, parallelism: int = 2) -> list[list[int]]:
    """The ids of each partition of a prepared input, as Spark gives them."""
    import pyarrow

    prepared = prepare(spark, job(parallelism=parallelism), {"reader": df}).by_operator["reader"]
    schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(prepared.plan.schema))

    def ids(messages: Any) -> Any:
        found = []
        for message in messages:
            found += pyarrow.ipc.read_record_batch(pyarrow.py_buffer(message), schema).column("id").to_pylist()
        yield found

    return list(prepared.partitions.mapPartitions(ids).collect())


def joined(partitions: list[list[int]]) -> list[int]:
    return [number for partition in partitions for number in partition]


def test_a_partition_for_each_subtask_is_taken_as_it_is(spark: SparkSession) -> None:
    assert read(spark, numbers(spark)) == [list(range(500)), list(range(500, 1000))]


def test_more_partitions_than_subtasks_are_joined_with_their_neighbours_in_order(spark: SparkSession) -> None:
    assert read(spark, numbers(spark, 5)) == [list(range(400)), list(range(400, 1000))]


def test_fewer_partitions_than_subtasks_are_refused_with_both_ways_out(spark: SparkSession) -> None:
    with pytest.raises(JobRefused, match=r"'reader' has 2 partition.*3 subtasks.*parallelism=2.*spread\(df, 3\)"):
        prepare(spark, job(parallelism=3), {"reader": numbers(spark)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda df: df.withColumn("r", F.rand(7)), r"it has rand\(7\)"),
        (lambda df: df.where(F.rand(7) > 0.5).select("id"), r"it has rand\(7\)"),
        (lambda df: df.withColumn("u", F.expr("uuid()")), "it has uuid"),
        (lambda df: df.select("id", F.udf(lambda i: i).asNondeterministic()("id")), "it has <lambda>"),
        (lambda df: df.repartition(2), r"shuffle.*spread\(df, 2\)"),
        (lambda df: df.repartition(2, "id").where("id > 3"), "shuffle"),
        (lambda df: df.groupBy("text").count(), "shuffle"),
        (lambda df: df.repartition(4).sortWithinPartitions("id").repartition(2), "shuffle"),
    ],
    ids=["rand", "rand in a filter", "uuid", "a user's function", "round robin", "by key", "groupBy", "sorted before"],
)
def test_rows_that_may_differ_the_next_time_are_refused(
    spark: SparkSession, change: Callable[[DataFrame], DataFrame], says: str
) -> None:
    with pytest.raises(JobRefused, match=says) as refused:
        prepare(spark, job(), {"reader": change(numbers(spark))})
    for part in ("'reader'", "files", "checkpoint()"):
        assert part in str(refused.value)


def test_spread_rows_come_in_the_same_order_each_time_all_of_them(spark: SparkSession) -> None:
    once, again = (read(spark, spread(numbers(spark, 3).repartition(n), 4), 4) for n in (3, 5))
    assert once == again
    assert sorted(joined(once)) == list(range(1000))
    assert all(once) and once[0] != sorted(once[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda df: df.repartition(2, "id").sortWithinPartitions("id"),
        lambda df: df.repartition(2).sortWithinPartitions("id").where("id > 3").withColumn("more", F.lit(1)),
    ],
)
def test_rows_that_are_sorted_behind_the_shuffle_are_accepted(
    spark: SparkSession, change: Callable[[DataFrame], DataFrame]
) -> None:
    for partition in read(spark, change(numbers(spark))):
        assert partition == sorted(partition)


def test_a_dataframe_that_was_checkpointed_is_accepted_shuffle_or_not(spark: SparkSession, tmp_path: Path) -> None:
    spark.sparkContext.setCheckpointDir(str(tmp_path))
    df = numbers(spark).repartition(2).checkpoint()
    assert read(spark, df) == read(spark, df)


def test_every_kind_of_column_can_be_told_apart(spark: SparkSession) -> None:
    df = spark.range(0, 10, 1, 2).selectExpr(
        "id", "map('a', id) AS m", "array(named_struct('b', map('c', id))) AS nested", "cast(id AS decimal(9, 3)) AS d",
        "if(id % 2 = 0, NULL, id) AS missing", "current_date() AS day", "timestamp_seconds(id) AS at",
        "cast('x' AS binary) AS raw", "id AS `with.dot`", "id AS `with``tick`", "cast(array() AS array<int>) AS empty",
    )  # fmt: skip
    assert joined(read(spark, df)) == list(range(10))
    assert sorted(joined(read(spark, spread(df, 2)))) == list(range(10))


def test_which_values_are_missing_makes_another_row(spark: SparkSession) -> None:
    from penstock.spark_integration.dataframe_input import _row_hash

    df = spark.createDataFrame([(1, None), (None, 1), (1, 1), (None, None)], "a int, b int")
    assert len({row[0] for row in df.select(_row_hash(df)).collect()}) == 4


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda df: {"writer": df}, "operator 'writer', which job 'refused' does not have; it has: reader"),
        (lambda df: {"reader": df.toPandas}, "must be a DataFrame of this classic session"),
        (lambda df: df, "inputs must be a dict"),
        (lambda df: {"reader": df.selectExpr("id", "array() AS nothing")}, "cannot be an Arrow column"),
        (lambda df: {"reader": df.select("id", "id")}, "more than one column called id"),
        (lambda df: {"reader": df.withColumn(HASH_COLUMN, F.lit(1))}, "a name that is needed here"),
        (lambda df: {"reader": df.select()}, "no columns"),
        (lambda df: {}, r"process_rows, and no DataFrame is given for it.*inputs=\{\"reader\": df\}"),
    ],
)
def test_what_is_no_input_is_refused(spark: SparkSession, given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        prepare(spark, job(), given(numbers(spark)))


def test_a_stream_is_refused(spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="streaming DataFrame"):
        prepare(spark, job(), {"reader": df})


@pytest.mark.parametrize(
    ("subtask", "says"), [(Idle, ""), (Subtask, ""), (Polling, "has a poll"), (partial(Polling), "has a poll")]
)
def test_a_class_that_cannot_take_rows_is_refused(
    spark: SparkSession, subtask: Callable[[], Subtask], says: str
) -> None:
    if says:
        with pytest.raises(ConfigurationError, match=says):
            prepare(spark, job(subtask), {"reader": numbers(spark)})
    else:  # a factory does not tell before it is called
        assert prepare(spark, job(subtask), {"reader": numbers(spark)}).by_operator


class Deaf(Subtask):
    def handle_operator_event(self, event: Any) -> None: ...


def test_a_class_without_process_rows_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"Deaf does not say what to do with rows.*process_rows"):
        prepare(spark, job(Deaf), {"reader": numbers(spark)})


def test_an_operator_with_records_of_others_takes_no_dataframe(spark: SparkSession) -> None:
    made = Job("refused")
    source = made.operator("source", subtask=Subtask, parallelism=1)
    made.operator("reader", subtask=Taking, parallelism=2, inputs=[source.rebalance()])
    with pytest.raises(ConfigurationError, match="records of other operators"):
        prepare(spark, made, {"reader": numbers(spark)})


@pytest.mark.parametrize(
    "settings", [{"rows_per_batch": 0}, {"rows_per_batch": 1.5}, {"kept_bytes": -1}, {"ahead_bytes": 0}]
)
def test_sizes_that_make_no_sense_are_refused(spark: SparkSession, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        DataFrameInput(numbers(spark), **settings)


def test_too_few_slots_are_refused_before_the_input_is_computed(spark: SparkSession) -> None:
    with pytest.raises(JobRefused, match="needs 5 task slots"):
        run(spark, job(parallelism=5), broker="127.0.0.1:1", inputs={"reader": numbers(spark, 5)})


def test_results_that_are_not_there_are_no_empty_result_unless_a_schema_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=r"'out' of job 'j' has no visible file"):
        read_results(spark, str(tmp_path), job="j", operator="out")
    assert read_results(spark, str(tmp_path), job="j", operator="out", schema="a int").collect() == []
    with pytest.raises(ConfigurationError, match="is not there"):
        read_results(spark, str(tmp_path / "nowhere"), job="j", operator="out")
    with pytest.raises(ConfigurationError, match="absolute path"):
        read_results(spark, "s3://bucket/out", job="j", operator="out")


def test_results_are_those_of_one_operator_of_one_job(spark: SparkSession, tmp_path: Path) -> None:
    for name, row in (("j.out.0.e0.a1.c1.x", 1), ("j.out.1.e0.a1.c1.x", 2), ("j.outer.0.e0.a1.c1.x", 3)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"a": {row}}}\n')
    (tmp_path / ".penstock").mkdir()
    (tmp_path / ".penstock" / "j.out.0.e0.a1.y.jsonl").write_text('{"a": 4}\n')
    found = read_results(spark, tmp_path.as_uri(), job="j", operator="out", schema="a int")
    assert sorted(row.a for row in found.collect()) == [1, 2]
    (tmp_path / "j.out.0.e0.a1.c2.x.csv").write_text("5")
    with pytest.raises(ConfigurationError, match=r"\.csv, \.jsonl"):
        read_results(spark, str(tmp_path), job="j", operator="out")
