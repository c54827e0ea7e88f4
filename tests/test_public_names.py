"""What users import from the package itself."""

from __future__ import annotations

import importlib

import penstock
from penstock.schemas import errors as tree


def test_every_public_name_is_there() -> None:
    assert [name for name in penstock.__all__ if not hasattr(penstock, name)] == []


def test_every_error_can_be_imported_from_penstock_errors() -> None:
    module = importlib.import_module("penstock.errors")
    every = {name for name, found in vars(tree).items() if isinstance(found, type)}
    assert "JobFailed" in every
    assert {name for name in every if getattr(module, name, None) is getattr(tree, name)} == every
    assert penstock.errors is module
