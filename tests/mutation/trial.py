"""One mutation in a process of its own: the tests of its core, then simulated histories, until something notices it."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

import hypothesis
import pytest

from tests.mutation.mutations import Mutation
from tests.simulation.campaign import end_with_parent
from tests.simulation.configs import CONFIGS
from tests.simulation.edits import running
from tests.simulation.markers import REPOSITORY, module_of
from tests.simulation.run import simulate

SEEDS_BELOW = 100_000
TEST_TIMEOUT_S = 120
"""Of a single test: a loop without end is noticed by then."""
SEED_TIMEOUT_S = 60
"""The same of a single seed, in seconds of the processor: the machine may be busy."""
MEMORY_BYTES = 2 << 30
"""Of the process: a loop that collects without end fails, and leaves the machine alone."""
_LOOK_S = 0.2
"""How often deadlines are looked at."""

_TESTS = {
    "checkpoint_log": ("tests/coordinator/protocol",),
    "coordinator/protocol": ("tests/coordinator/protocol",),
    "subtask_client/protocol": ("tests/subtask_client",),
}
_SLOW = ("_machine.py", "test_thousands.py", "runtime/")
"""In the names of test files: those that come last."""


Subject = Mutation | str
"""What is tried: a mutation; or a core as it is, by its folder."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of what is run for one mutation before it counts as unnoticed."""

    seeds: int = 5
    """Of each configuration of the simulator."""
    deadline_s: float = 3600.0
    """Of the whole process. One that takes longer hangs, and counts as noticed."""
    tests: Sequence[str] = ()
    """Files or folders of tests; those of the core if not given."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a trial."""

    subject: Subject
    noticed_by: str | None
    """The test, or the configuration and seed, and what it says; None if nothing failed."""
    took_s: float


def judged(subjects: Iterable[Subject], bounds: Bounds, processes: int) -> Iterator[Verdict]:
    """Try so many subjects at a time, and yield each verdict as it comes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    todo = iter(subjects)
    under_way: dict[Connection, _Trial] = {}
    try:
        while True:
            for subject in itertools.islice(todo, processes - len(under_way)):
                reader, writer = context.Pipe(duplex=False)
                process = context.Process(target=_try, args=(writer, subject, bounds), daemon=True)
                process.start()
                writer.close()
                under_way[reader] = _Trial(subject, process, time.monotonic())
            if not under_way:
                return
            ended = wait(list(under_way), timeout=_LOOK_S)
            for reader, trial in list(under_way.items()):
                if (verdict := trial.verdict(reader, reader in ended, bounds)) is not None:
                    del under_way[reader]
                    yield verdict
    finally:
        for trial in under_way.values():
            trial.end()


@dataclass(slots=True)
class _Trial:
    subject: Subject
    process: BaseProcess
    since: float
    stage: str = ""

    def end(self) -> None:
        """End the process, whatever it is at: a mutation may keep it from ending itself."""
        self.process.kill()
        self.process.join()

    def verdict(self, reader: Connection, spoke: bool, bounds: Bounds) -> Verdict | None:
        """Return the verdict, None while there is none yet."""
        took_s = time.monotonic() - self.since
        if spoke:
            try:
                said = reader.recv()
            except EOFError:
                self.process.join()
                ended = f"the process ended with exit code {self.process.exitcode}"
                if not self.stage:
                    raise RuntimeError(f"{self.subject} cannot be tried: {ended}") from None
                return Verdict(self.subject, f"{ended} in {self.stage}", took_s)
            if isinstance(said, str):
                self.stage = said
                return None
            (noticed_by,) = said
            self.end()
            return Verdict(self.subject, noticed_by, took_s)
        if took_s < bounds.deadline_s:
            return None
        self.end()
        hangs = f"not done within {bounds.deadline_s:g} s: it hangs in {self.stage or 'the beginning'}"
        return Verdict(self.subject, hangs, took_s)


# ---- in the process of a trial


def _try(parent: Connection, subject: Subject, bounds: Bounds) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    os.chdir(REPOSITORY)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    if isinstance(subject, Mutation):
        core, number = subject.path.rpartition("/")[0], subject.number
        trees = {module_of(subject.path): subject.tree()}
    else:
        core, number, trees = subject, 0, {}
    with running(trees):
        parent.send("the tests")
        noticed_by = _noticed_by_tests(bounds.tests or _TESTS[core])
        if noticed_by is None:
            parent.send("the simulator")
            noticed_by = _noticed_by_seeds(bounds.seeds, number)
    parent.send((noticed_by,))


class _Witness:
    """The first test that fails, and the order in which tests run: quick ones first."""

    def __init__(self) -> None:
        self.failed: str | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: any(slow in item.nodeid for slow in _SLOW))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._keep(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._keep(report)

    def _keep(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and self.failed is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = (crash.message if crash is not None else str(report.longrepr)).splitlines()
            self.failed = f"{report.nodeid}: {said[0][:160] if said else ''}"


def _noticed_by_tests(tests: Sequence[str]) -> str | None:
    # The same examples for every mutation; one that fails is not made smaller.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutation", derandomize=True, database=None, phases=phases, suppress_health_check=list(hypothesis.HealthCheck)
    )
    hypothesis.settings.load_profile("mutation")
    witness = _Witness()
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not kafka and not spark", f"--timeout={TEST_TIMEOUT_S}"]
    code = pytest.main([*options, *tests], plugins=[witness])
    if witness.failed is not None or code == pytest.ExitCode.OK:
        return witness.failed
    return f"pytest, which ended with {code!r}"


def _noticed_by_seeds(seeds: int, number: int) -> str | None:
    """Simulate seeds of all configurations in random order; the same for each run of the mutation."""
    rng = random.Random(number)
    chosen = [(name, seed) for name in CONFIGS for seed in rng.sample(range(SEEDS_BELOW), seeds)]
    rng.shuffle(chosen)
    signal.signal(signal.SIGPROF, _out_of_time)
    for name, seed in chosen:
        signal.setitimer(signal.ITIMER_PROF, SEED_TIMEOUT_S)
        if (violation := simulate(CONFIGS[name], seed).violation) is not None:
            return f"{name} seed {seed}: {violation.splitlines()[0][:160]}"
    return None


def _out_of_time(signal_: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"not done within {SEED_TIMEOUT_S} s")
