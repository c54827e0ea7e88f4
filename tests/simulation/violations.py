"""What a check raises."""

from __future__ import annotations


class Violation(AssertionError):
    """The protocol does not hold in this history."""
