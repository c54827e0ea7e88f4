"""The pytest plugin, there wherever Penstock is installed: ``docs/testing-your-job.md``.

Every run of pytest in that environment imports this module, whether it tests jobs or not. So it imports nothing but
pytest; what its fixtures need is imported when one of them is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..broker import EmbeddedBroker
    from .faults import Faults
    from .fixtures import LocalJobs

DEFAULT_SEED = 0

_used: pytest.StashKey[dict[str, object]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock", "faults in jobs under test")
    group.addoption(
        "--penstock-seed",
        type=int,
        metavar="SEED",
        help=f"what the fixture penstock_seed is, and what decides random faults (default: {DEFAULT_SEED})",
    )
    group.addoption(
        "--penstock-seeds",
        type=int,
        metavar="N",
        help="runs each test that uses a seed, local_job or penstock_faults with so many seeds one after the other",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "penstock_seeds(n): runs the test under n seeds, unless --penstock-seed(s) says otherwise"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    seed, count = _first_seed(config), config.getoption("penstock_seeds")
    if count is None and config.getoption("penstock_seed") is None:
        return None
    return f"penstock: seed {seed}" if count is None else f"penstock: seeds {seed} to {seed + count - 1}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "penstock_seed" not in metafunc.fixturenames:
        return
    if any("penstock_seed" in str(mark.args[:1]) for mark in metafunc.definition.iter_markers("parametrize")):
        return  # the test names its seeds itself
    count = metafunc.config.getoption("penstock_seeds")
    marker = metafunc.definition.get_closest_marker("penstock_seeds")
    if count is None and marker is not None and metafunc.config.getoption("penstock_seed") is None:
        count = marker.args[0]
    if count is not None:
        if count < 1:
            raise pytest.UsageError(f"the number of penstock seeds must be at least 1, not {count}")
        first = _first_seed(metafunc.config)
        metafunc.parametrize("penstock_seed", range(first, first + count), ids=_seed_id)


def _first_seed(config: pytest.Config) -> int:
    seed = config.getoption("penstock_seed")
    return DEFAULT_SEED if seed is None else int(seed)


def _seed_id(seed: int) -> str:
    return f"seed{seed}"


@pytest.fixture
def penstock_seed(request: pytest.FixtureRequest) -> int:
    """What decides random faults: --penstock-seed, or one of --penstock-seeds. For your own random numbers too."""
    return _first_seed(request.config)


@pytest.fixture
def penstock_faults(request: pytest.FixtureRequest, penstock_seed: int) -> Iterator[Faults]:
    """The faults of this test's jobs (penstock.testing.Faults); ended when the test ends."""
    from .faults import Faults

    faults = Faults(penstock_seed)
    request.node.stash.setdefault(_used, {})["faults"] = faults
    yield faults
    faults.clear()


@pytest.fixture
def local_job(request: pytest.FixtureRequest, penstock_faults: Faults) -> Iterator[LocalJobs]:
    """Call it with a job: runs it in threads (penstock.testing.LocalJob) until the test ends."""
    from .fixtures import LocalJobs

    jobs = LocalJobs(penstock_faults)
    request.node.stash.setdefault(_used, {})["jobs"] = jobs
    yield jobs
    jobs.close()


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A real Apache Kafka (penstock.broker.EmbeddedBroker) for the whole session; needs Java."""
    from ..broker import EmbeddedBroker

    with EmbeddedBroker(tmp_path_factory.mktemp("penstock-kafka") / "data") as broker:
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    used = item.stash.get(_used, None)
    if used is not None and report.failed:
        report.sections.append((f"penstock ({report.when})", _told(item, used)))
    return report


def _told(item: pytest.Item, used: dict[str, object]) -> str:
    """What the jobs of a failed test were doing, what was injected, and how to do it again."""
    from .faults import Faults
    from .fixtures import LocalJobs

    faults, jobs = used.get("faults"), used.get("jobs")
    lines = [running.describe() for running in jobs.started] if isinstance(jobs, LocalJobs) else []
    if isinstance(faults, Faults):
        if not lines:
            lines += [f"injected {injected}" for injected in faults.injected]
        lines.append(f'again: pytest "{_without_seed(item, faults.seed)}" --penstock-seed {faults.seed}')
    return "\n".join(lines)


def _without_seed(item: pytest.Item, seed: int) -> str:
    """The test's id as it is where one seed is given."""
    name, bracket, parameters = item.nodeid.partition("[")
    left = [p for p in parameters.removesuffix("]").split("-") if p != _seed_id(seed)]
    return f"{name}[{'-'.join(left)}]" if bracket and left else name
