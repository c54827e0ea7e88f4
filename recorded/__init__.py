"""A job's history as its topics hold it: read, shown, replayed and copied. Needs no coordinator and no job file."""

from __future__ import annotations

if __name__ != "penstock.recorded":
    raise ImportError(f"import this package as penstock.recorded, not as {__name__}")
