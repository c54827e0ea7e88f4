"""The suite itself: what its page promises, and how its files are shared out among workers."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

from tests.parts import HEAVY_MAX, LAYERS, ByFile, layer_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-it-is-tested.md").read_text()
HEAVY_FILES = [
    "tests/spark_integration/test_runs.py",
    "tests/spark_integration/test_failures.py",
    "tests/containers/test_faults.py",
]
IN_MEMORY = ["tests/test_suite.py", "tests/test_readme.py"]


def test_the_page_names_every_smoke_case_and_no_other() -> None:
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__) and "pytest.mark.smoke" in path.read_text()
    }
    (table,) = re.findall(r"## What `make test` leaves out\n(.*?)\n## ", PAGE, re.DOTALL)
    assert set(re.findall(r"`(tests/[\w/]+\.py)`", table)) == marked


def test_every_layer_has_a_smoke_case() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert {layer_of(path) for path in named} >= set(LAYERS) - {""}


class Worker:
    """A worker that notes which tests it was given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices


def scheduler(files: list[str], workers: list[Worker]) -> ByFile:
    made = ByFile.__new__(ByFile)
    tests = [f"{file}::test_one" for file in files]
    made.workqueue = OrderedDict((file, {test: False}) for file, test in zip(files, tests, strict=True))
    made.assigned_work = {worker: {} for worker in workers}
    made.registered_collections = dict.fromkeys(workers, tests)
    return made


def test_no_more_workers_than_allowed_run_heavy_files_while_there_are_others() -> None:
    workers = [Worker() for _ in range(HEAVY_MAX + 2)]
    files = [*HEAVY_FILES, *IN_MEMORY]
    shared_out = scheduler(files, workers)
    for worker in workers:
        shared_out._assign_work_unit(worker)
    assert [[files[index] for index in worker.given] for worker in workers] == [
        *([file] for file in HEAVY_FILES[:HEAVY_MAX]),
        *([file] for file in IN_MEMORY),
    ]


def test_a_worker_gets_a_heavy_file_when_another_has_ended_with_one() -> None:
    first, second = workers = [Worker() for _ in range(2)]
    files = [*HEAVY_FILES, *IN_MEMORY]
    shared_out = scheduler(files, workers)
    shared_out._assign_work_unit(first)
    shared_out._assign_work_unit(second)
    shared_out.assigned_work[first][HEAVY_FILES[0]][f"{HEAVY_FILES[0]}::test_one"] = True
    shared_out._assign_work_unit(first)
    assert [files[index] for index in first.given] == [HEAVY_FILES[0], HEAVY_FILES[2]]


def test_a_worker_gets_a_heavy_file_when_nothing_else_is_left() -> None:
    workers = [Worker() for _ in HEAVY_FILES]
    shared_out = scheduler(HEAVY_FILES, workers)
    for worker in workers:
        shared_out._assign_work_unit(worker)
    assert [worker.given for worker in workers] == [[0], [1], [2]]


def test_a_file_goes_to_one_worker_and_simulated_histories_to_any() -> None:
    split = ByFile.__new__(ByFile)._split_scope
    assert (
        split("tests/cli/test_run.py::test_a[x]") == split("tests/cli/test_run.py::test_b") == "tests/cli/test_run.py"
    )
    history = "tests/simulation/test_simulation.py::test_no_schedule_breaks_the_protocol"
    assert split(f"{history}[0-first-calm]") != split(f"{history}[0-first-replay1]")
