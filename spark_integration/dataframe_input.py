"""DataFrames as inputs of long-running subtasks: what the driver checks and prepares (``docs/dataframes.md``)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyspark.sql.pandas.types
import pyspark.sql.pandas.utils
from pyspark.rdd import RDD
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from ..job import Job, Operator
from ..schemas.errors import ConfigurationError, JobRefused
from ..subtask_client.api import Subtask
from .rows import ArrowMessages, RowsPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HASH_COLUMN = "__penstock_row_hash"
_WAYS = (
    "Write it to files and read those, or checkpoint() it (with spark.sparkContext.setCheckpointDir), or give it an"
    " order: penstock.spark_integration.spread(df, {parallelism})"
)
_PYTHON_NODES = {"BatchEvalPython", "ArrowEvalPython", "MapInArrow", "MapInPandas"}
_ORDER_KEEPING = frozenset({"Project", "Filter", "SubqueryAlias", "Generate", *_PYTHON_NODES})
"""Logical nodes that give their child's rows, or what becomes of them, in its order."""


@dataclass(frozen=True)
class DataFrameInput:
    """A DataFrame as an operator's input, with settings of its own; a plain DataFrame has those that stand here.

    ``rows_per_batch``: at most so many rows in one ``process_rows``; events are handled, and snapshots taken, between
    two calls. ``kept_bytes``: so much of what was handed over since the last completed checkpoint stays in each task's
    memory, so that an attempt that starts over in place finds it; where it does not suffice, the Spark task ends, and
    the next one reads its partition again (0: always). ``ahead_bytes``: so much is read ahead.
    """

    dataframe: DataFrame
    rows_per_batch: int = 1_000
    kept_bytes: int = 64 * 1024 * 1024
    ahead_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        for name, least in (("rows_per_batch", 1), ("kept_bytes", 0), ("ahead_bytes", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(
                    f"{name} of a DataFrameInput must be a whole number, at least {least}, not {value!r}"
                )


@dataclass(frozen=True)
class PreparedInput:
    """One operator's rows, a partition for each subtask."""

    partitions: RDD[bytes]
    plan: RowsPlan


@dataclass(frozen=True)
class PreparedInputs:
    """Those of a run."""

    by_operator: Mapping[str, PreparedInput] = field(default_factory=dict)
    sql_settings: Mapping[str, str] = field(default_factory=dict)
    """Of the session: executors compute the rows with them."""


def spread(df: DataFrame, partitions: int) -> DataFrame:
    """The rows of ``df`` in so many partitions, the same rows in the same order each time: fit for an input.

    A shuffle by a hash of all columns, and a sort within each partition. Equal rows go to the same partition.
    """
    if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
        raise ConfigurationError(f"partitions is {partitions!r}; it must be a whole number above 0")
    _check_columns("spread", df)
    row_hash = _row_hash(df)
    sortable = [_named(f.name) for f in df.schema.fields if not _holds(f.dataType, (MapType, VariantType))]
    return df.repartition(partitions, row_hash).sortWithinPartitions(row_hash, *sortable)


def prepare(spark: SparkSession, job: Job, inputs: Mapping[str, DataFrame | DataFrameInput] | None) -> PreparedInputs:
    """Checks the inputs of a run, and has Spark plan them; shuffles before their last stage run in here.

    Raises ConfigurationError for what cannot be an input, JobRefused for a DataFrame that is not the same twice, and
    what Spark raises where it cannot compute one.
    """
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ConfigurationError(f'inputs must be a dict, inputs={{"reader": df}}, not {inputs!r}')
    inputs = inputs or {}
    for name in inputs:
        _check_operator(job, name)
    for name, operator in job.operators.items():
        if name in inputs or operator.settings.inputs:  # a sink takes records, or rows
            continue
        if _class_of(operator).process_rows is not Subtask.process_rows:
            raise ConfigurationError(
                f"the {_class_of(operator).__name__} of operator {name!r} of job {job.name!r} has a process_rows, and"
                f' no DataFrame is given for it: run(..., inputs={{"{name}": df}})'
            )
    if not inputs:
        return PreparedInputs()
    _require_arrow()
    for name, given in inputs.items():
        _check_dataframe(spark, job, name, given)
    prepared = {name: _prepared(spark, job.operators[name], _settings_of(given)) for name, given in inputs.items()}
    return PreparedInputs(prepared, {k: v for k, v in spark.conf.getAll.items() if k.startswith("spark.sql.")})


def _settings_of(given: DataFrame | DataFrameInput) -> DataFrameInput:
    return given if isinstance(given, DataFrameInput) else DataFrameInput(given)


def _require_arrow() -> None:
    require: Any = pyspark.sql.pandas.utils.require_minimum_pyarrow_version
    try:
        require()
    except ImportError as error:
        raise ConfigurationError(
            f"a DataFrame as an input needs pyarrow, here and in the workers' Python: {error}. pip install"
            " 'pyarrow>=18'"
        ) from error


def _check_operator(job: Job, name: str) -> None:
    operator = job.operators.get(name)
    if operator is None:
        raise ConfigurationError(
            f"an input is given for operator {name!r}, which job {job.name!r} does not have; it has:"
            f" {', '.join(job.operators)}"
        )
    if operator.settings.inputs:
        raise ConfigurationError(
            f"operator {name!r} of job {job.name!r} takes records of other operators, so it can have no DataFrame"
            " beside them: give the DataFrame to an operator of its own, and let that emit what this one needs"
        )
    kind = _class_of(operator)
    if kind is not Subtask and kind.process_rows is Subtask.process_rows:
        raise ConfigurationError(
            f"operator {name!r} of job {job.name!r} is given a DataFrame, and its {kind.__name__} does not say what to"
            " do with rows: give it a process_rows(batch)"
        )
    if kind.poll is not Subtask.poll:
        raise ConfigurationError(
            f"operator {name!r} of job {job.name!r} is given a DataFrame, and its {kind.__name__} has a poll: the work"
            " of such an operator comes as rows, to process_rows; give the poll to an operator of its own"
        )


def _class_of(operator: Operator) -> type[Subtask]:
    """Subtask itself where the factory does not tell before it is called."""
    made: Any = operator.subtask
    while isinstance(made, functools.partial):
        made = made.func
    return made if isinstance(made, type) and issubclass(made, Subtask) else Subtask


def _check_dataframe(spark: SparkSession, job: Job, name: str, given: object) -> None:
    where = f"the input of operator {name!r} of job {job.name!r}"
    df: Any = given.dataframe if isinstance(given, DataFrameInput) else given
    if not hasattr(df, "_jdf") or not hasattr(df, "sparkSession"):
        raise ConfigurationError(
            f"{where} must be a DataFrame of this classic session, or a DataFrameInput, not a {type(df).__module__}."
            f"{type(df).__qualname__}"
        )
    if df.sparkSession.sparkContext is not spark.sparkContext:
        raise ConfigurationError(f"{where} belongs to another SparkContext than the run does")
    if df.isStreaming:
        raise ConfigurationError(
            f"{where} is a streaming DataFrame, which has no end and is computed batch by batch: read it with read in"
            " place of readStream"
        )
    _check_columns(where, df)
    analyzed = df._jdf.queryExecution().analyzed()
    if not analyzed.deterministic():
        why = _nondeterministic(analyzed) or "Spark says that it is not deterministic"
        raise JobRefused(
            f"{where} is not the same each time it is computed: {why}."
            " A task that is started again would read other rows than those that its checkpoint contains. Write the"
            " DataFrame to files and read those, or checkpoint() it"
        )


def _check_columns(where: str, df: DataFrame) -> None:
    names = df.columns
    if not names:
        raise ConfigurationError(f"{where}: the DataFrame has no columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or HASH_COLUMN in names:
        raise ConfigurationError(
            f"{where}: the DataFrame has more than one column called {', '.join(twice)}; rename them"
            if twice
            else f"{where}: the DataFrame has a column {HASH_COLUMN}, a name that is needed here; rename it"
        )


# ---- rows that can be read again


def _prepared(spark: SparkSession, operator: Operator, given: DataFrameInput) -> PreparedInput:
    df, parallelism = given.dataframe, operator.parallelism
    hashed = df.withColumn(HASH_COLUMN, _row_hash(df))
    plan = RowsPlan(
        _arrow_schema(spark, operator, hashed),
        df.schema.simpleString(),
        given.rows_per_batch,
        given.kept_bytes,
        given.ahead_bytes,
    )
    messages = cast("Any", hashed)._jdf.toArrowBatchRdd()
    partitions = int(messages.getNumPartitions())
    level = str(messages.outputDeterministicLevel().toString())
    if level == "INDETERMINATE" or (level == "UNORDERED" and not _is_sorted(hashed)):
        raise JobRefused(
            f"the input of operator {operator.name!r} comes out of a shuffle, which gives its rows in another order"
            " each time: a task that is started again would not find the row at which its checkpoint stands."
            f" {_WAYS.format(parallelism=parallelism)}"
        )
    if partitions < parallelism:
        raise JobRefused(
            f"the input of operator {operator.name!r} has {partitions} partition(s) and the operator {parallelism}"
            f" subtasks, each of which gets one: set parallelism={max(partitions, 1)}, or spread the rows with"
            f" penstock.spark_integration.spread(df, {parallelism})"
        )
    java_rdd = messages.toJavaRDD()
    if partitions > parallelism:  # neighbours one after the other, without a shuffle
        java_rdd = java_rdd.coalesce(parallelism)
    return PreparedInput(RDD(java_rdd, spark.sparkContext, ArrowMessages()), plan)


def _arrow_schema(spark: SparkSession, operator: Operator, df: DataFrame) -> bytes:
    to_arrow_schema: Any = pyspark.sql.pandas.types.to_arrow_schema
    large = spark.conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false")
    try:
        schema = to_arrow_schema(
            df.schema, timezone=spark.conf.get("spark.sql.session.timeZone"), prefers_large_types=large == "true"
        )
    except Exception as error:  # pyspark has several
        raise ConfigurationError(
            f"the input of operator {operator.name!r} has a column that cannot be an Arrow column: {error}. Cast it, or"
            " drop it"
        ) from error
    return bytes(schema.serialize())


def _row_hash(df: DataFrame) -> Column:
    """64 bits of a row, computed by the JVM; which values are missing counts too, which the hash alone passes over."""
    columns: list[Column] = []
    for column in df.schema.fields:
        named = _named(column.name)
        # Maps and variants have no hash: their keys may come in any order.
        columns.append(F.to_json(F.struct(named)) if _holds(column.dataType, (MapType, VariantType)) else named)
        columns.append(F.isnull(named))
    return F.xxhash64(*columns)


def _named(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _holds(given: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    """Whether a type is, or has somewhere in it, one of these."""
    if isinstance(given, kinds):
        return True
    if isinstance(given, ArrayType):
        return _holds(given.elementType, kinds)
    return isinstance(given, StructType) and any(_holds(inner.dataType, kinds) for inner in given.fields)


def _is_sorted(df: DataFrame) -> bool:
    """Whether the last thing that orders the rows is a sort."""
    plan = cast("Any", df)._jdf.queryExecution().optimizedPlan()
    while plan.nodeName() in _ORDER_KEEPING:
        plan = plan.children().apply(0)
    return bool(plan.nodeName() == "Sort")


def _nondeterministic(plan: Any) -> str | None:
    """The expression that makes a plan non-deterministic, as Spark writes it."""
    for expression in _elements(plan.expressions()):
        if not expression.deterministic():
            return f"it has {_innermost(expression).toString()}"
    return next(filter(None, map(_nondeterministic, _elements(plan.children()))), None)


def _innermost(expression: Any) -> Any:
    for inner in _elements(expression.children()):
        if not inner.deterministic():
            return _innermost(inner)
    return expression


def _elements(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(i) for i in range(sequence.size()))
