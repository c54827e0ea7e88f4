"""Tables: sinks that commit each checkpoint to a Delta or Iceberg table, once (``docs/tables.md``)."""

from __future__ import annotations

if __name__ != "penstock.tables":
    raise ImportError(f"import this package as penstock.tables, not as {__name__}")

from .delta import Delta
from .iceberg import Iceberg
from .table import Table
from .table_writer import TableWriter

__all__ = ["Delta", "Iceberg", "Table", "TableWriter"]
