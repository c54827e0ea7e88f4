"""Sources: operators that read files, other splits or Kafka topics, each record once (``docs/sources.md``)."""

from __future__ import annotations

if __name__ != "penstock.sources":
    raise ImportError(f"import this package as penstock.sources, not as {__name__}")

__all__: list[str] = []
