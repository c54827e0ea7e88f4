"""Whether a job's topics say one consistent history, and exactly where not (``docs/audit.md``)."""

from __future__ import annotations

if __name__ != "penstock.audit":
    raise ImportError(f"import this package as penstock.audit, not as {__name__}")

from .reading import audit
from .report import Finding, Kind, Report

__all__ = ["Finding", "Kind", "Report", "audit"]
