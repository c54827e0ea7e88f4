"""Rules: versioned rule sets that change in all subtasks at once (``docs/rules.md``)."""

from __future__ import annotations

if __name__ != "penstock.rules":
    raise ImportError(f"import this package as penstock.rules, not as {__name__}")

from .rules import Rules
from .subtask import RuleSubtask

__all__ = ["RuleSubtask", "Rules"]
