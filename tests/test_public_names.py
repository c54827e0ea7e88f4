"""What users import from the package itself."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

import penstock
from penstock.schemas import errors as tree


def test_every_public_name_is_there() -> None:
    assert [name for name in penstock.__all__ if not hasattr(penstock, name)] == []


def test_the_interpreter_lists_the_public_names_and_nothing_of_the_inside() -> None:
    assert [name for name in dir(penstock) if not name.startswith("__")] == sorted(penstock.__all__)


@pytest.mark.parametrize("name", [name for name in penstock.__all__ if name != "errors"])
def test_the_interpreter_lists_the_public_names_of_each_module(name: str) -> None:
    module = getattr(penstock, name)
    if isinstance(module, ModuleType):
        assert set(module.__all__) <= set(dir(module))


def test_a_job_and_its_operators_are_shown_on_one_short_line() -> None:
    job = penstock.Job("flights")
    reader = job.operator("reader", subtask=penstock.Subtask, parallelism=4)
    totals = job.operator("totals", subtask=penstock.Subtask, parallelism=2, inputs=[reader.rebalance()])
    assert repr(job) == "<Job 'flights': reader x 4, totals x 2>"
    assert repr(totals) == "<Operator 'totals' x 2, inputs: reader>"


def test_every_error_can_be_imported_from_penstock_errors() -> None:
    module = importlib.import_module("penstock.errors")
    every = {name for name, found in vars(tree).items() if isinstance(found, type)}
    assert "JobFailed" in every
    assert {name for name in every if getattr(module, name, None) is getattr(tree, name)} == every
    assert penstock.errors is module
