"""What users need to test their coordinators and subtasks: a job in threads, faults to inject, checks, a pytest plugin.

``docs/testing-your-job.md`` shows how. Everything loads on demand: pytest imports this package for its plugin alone.
"""

from __future__ import annotations

if __name__ != "penstock.testing":
    raise ImportError(f"import this package as penstock.testing, not as {__name__}")

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import records
    from .checks import LogsContradict, check_logs
    from .faults import Fault, Faults, Injected
    from .local import LocalJob
    from .transport import FaultyTransport

_HOMES = {
    "Fault": "faults",
    "Faults": "faults",
    "FaultyTransport": "transport",
    "Injected": "faults",
    "LocalJob": "local",
    "LogsContradict": "checks",
    "check_logs": "checks",
}

__all__ = [
    "Fault",
    "Faults",
    "FaultyTransport",
    "Injected",
    "LocalJob",
    "LogsContradict",
    "check_logs",
    "records",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name == "records":
        return import_module(f"{__name__}.records")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
