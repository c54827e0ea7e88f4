"""Makes the writer of a streaming query that sends its batches to a coordinator (:mod:`.sink`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...job import Job
from ...schemas.topics import TopicNames
from ...transport.kafka import KafkaConfig
from .batch_events import require_event_column
from .event_types import described
from .options import SinkOptions, overlaid
from .registration import register_source
from .source import NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def stream_writer(
    frame: DataFrame, job: Job, operator: str, kafka: KafkaConfig, given: Mapping[str, object]
) -> DataStreamWriter:
    """Return the writer; raise ConfigurationError for a column or an option that does not fit."""
    settings = job.settings
    options = SinkOptions(
        TopicNames(job.prefix, job.name), operator, kafka,
        event_schema=described(job.operators[operator].codec),
        max_held_bytes=settings.operator(operator).max_held_bytes,
    )  # fmt: skip
    merged = overlaid(options.to_options(), given)
    require_event_column(frame.schema, SinkOptions.parse(merged).event(), f"operator {operator!r}")
    register_source(frame.sparkSession)
    return frame.writeStream.format(NAME).options(**merged)
