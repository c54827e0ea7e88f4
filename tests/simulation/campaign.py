"""Many seeds of many configurations on all cores; what has been run can be kept, and carried further another time."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
from collections import defaultdict
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import penstock

from .configs import CONFIGS
from .run import Found, explained, simulate

SEEDS_AT_ONCE = 5
_REPOSITORY = Path(__file__).parents[2]
_SOURCES = (
    "schemas", "audit", "coordinator", "subtask_client/protocol", "transport/memory.py",
    "transport/state_storage.py", "client/log_reader.py", "recorded",
    "spark_integration/streaming/offsets.py", "tests/simulation",
)  # fmt: skip
_TOOLS = {
    "__main__.py", "campaign.py", "edits.py", "markers.py", "mutants.py", "notices.py", "query_mutants.py", "run.py",
    "test_simulation.py",
}  # fmt: skip
"""Of the simulation's files: those that decide no history."""


@dataclass(slots=True)
class Tally:
    """What some seeds of one configuration came to."""

    config: str
    seeds: int = 0
    checkpoints: int = 0
    steps: int = 0
    faults: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.checkpoints += other.checkpoints
        self.steps += other.steps
        self.faults += other.faults
        self.violations += other.violations


def run_seeds(config: str, seeds: Sequence[int]) -> Tally:
    """Runs them one by one; breaks off behind the first violation."""
    tally = Tally(config)
    for seed in seeds:
        found = simulate(CONFIGS[config], seed)
        _count(tally, found)
        if found.violation is not None:
            tally.violations.append(explained(CONFIGS[config], found).report())
            break
    return tally


def _count(tally: Tally, found: Found) -> None:
    tally.seeds += 1
    tally.checkpoints += found.checkpoints
    tally.steps += found.steps
    tally.faults += len(found.faults)


def pool(processes: int | None = None) -> Executor:
    """Processes of their own, so that each has a core."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes or os.cpu_count(), mp_context=spawn, initializer=end_with_parent)


def end_with_parent() -> None:
    """End this process with its parent: what it was given to do would outlive a parent that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Record:
    """A file that remembers which seeds have been run on these very sources; others' lines are left alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._sources = _fingerprint()
        self.tallies: dict[str, Tally] = {name: Tally(name) for name in CONFIGS}
        self._done: dict[str, set[int]] = defaultdict(set)
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        for line in lines:
            said = json.loads(line)
            if said["sources"] == self._sources and said["config"] in self.tallies:
                self._done[said["config"]].update(range(said["begin"], said["end"]))
                self.tallies[said["config"]].add(Tally(**said["tally"]))

    def lacks(self, config: str, seeds: range) -> list[range]:
        """Batches of what has not been run."""
        batches = (seeds[at : at + SEEDS_AT_ONCE] for at in range(0, len(seeds), SEEDS_AT_ONCE))
        return [batch for batch in batches if not self._done[config].issuperset(batch)]

    def keep(self, config: str, seeds: range, tally: Tally) -> None:
        self.tallies[config].add(tally)
        if self._path is None:
            return
        fields = {name: getattr(tally, name) for name in Tally.__slots__}
        said = {
            "sources": self._sources, "config": config, "begin": seeds.start, "end": seeds.stop, "tally": fields,
        }  # fmt: skip
        with self._path.open("a") as file:
            file.write(json.dumps(said) + "\n")


def run_campaign(names: Sequence[str], seeds: range, record: Record, processes: int | None) -> Generator[Tally]:
    """Yield the tally of each batch as it ends.

    All configurations advance together, in an order that mixes their families: whenever the campaign is interrupted,
    each has run as many seeds as the others, give or take one batch.
    """
    batches = [(name, batch) for name in names for batch in record.lacks(name, seeds)]
    batches.sort(key=lambda entry: (entry[1].start, crc32(entry[0].encode())))
    with pool(processes) as workers:
        running: dict[Future[Tally], tuple[str, range]] = {
            workers.submit(run_seeds, name, batch): (name, batch) for name, batch in batches
        }
        try:
            for done in as_completed(running):
                record.keep(*running[done], done.result())
                yield done.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


def _fingerprint() -> str:
    """Of everything that decides a history."""
    digest = hashlib.sha256(penstock.__version__.encode())
    for name in _SOURCES:
        source = _REPOSITORY / name
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            if path.name not in _TOOLS:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
