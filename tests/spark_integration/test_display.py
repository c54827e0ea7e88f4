"""What a notebook shows of a job, its status and its run."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

import penstock
from penstock.spark_integration.display import displayed
from tests.dashboard.statuses import status


class Shown:
    """IPython's handle of what it has displayed."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def update(self, value: penstock.JobStatus) -> None:
        self.values.append(value._repr_html_())


def test_without_a_notebook_a_status_is_a_line_where_it_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    show = displayed()
    first, second = status(), replace(status(), last_completed=77)
    for each in (first, first, second):
        show(each)
    assert capsys.readouterr().out.splitlines() == [repr(first), repr(second)]


def test_a_notebook_redraws_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown()

    def display(value: penstock.JobStatus, *, display_id: bool) -> Shown:
        assert display_id and not shown.values, "there is one place"
        shown.update(value)
        return shown

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(module)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    show = displayed()
    show(status())
    show(replace(status(), cause="<b>out of disk</b>"))
    assert len(shown.values) == 2
    assert "<table>" in shown.values[1] and "&lt;b&gt;out of disk" in shown.values[1]


def test_a_job_is_a_table_of_its_operators() -> None:
    job = penstock.Job("flights")
    read = job.operator("read", subtask=penstock.Subtask, parallelism=4, output_codec="json")
    job.operator("sum", subtask=penstock.Subtask, parallelism=2, inputs=[read.rebalance()])
    told = job._repr_html_()
    assert "<td>read</td><td>4</td>" in told and "<td>sum</td><td>2</td>" in told
