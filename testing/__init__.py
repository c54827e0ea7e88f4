"""What users need to test their coordinators and subtasks without a broker."""

if __name__ != "penstock.testing":
    raise ImportError(f"import this package as penstock.testing, not as {__name__}")

from .local import LocalJob

__all__ = ["LocalJob"]
