"""Sources: operators that read files, other splits or Kafka topics, each record once (``docs/sources.md``)."""

from __future__ import annotations

if __name__ != "penstock.sources":
    raise ImportError(f"import this package as penstock.sources, not as {__name__}")

from .file_reader import FileReader
from .files import Files
from .kafka import Kafka, KafkaRecord
from .row_codec import RowCodec
from .split import Split
from .split_reader import SplitReader
from .split_source import Splits

__all__ = ["FileReader", "Files", "Kafka", "KafkaRecord", "RowCodec", "Split", "SplitReader", "Splits"]
