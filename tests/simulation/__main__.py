"""``python -m tests.simulation``: runs seeds, tells what broke and how to see it again.

--seeds A:B [--config PATTERN]      the seeds of every configuration, on all cores
--record FILE                       remembers what has been run, and goes on there another time
--trace SEED --config NAME          one seed, step by step
--mutants [PATTERN]                 for each rule left out, the seed that notices it
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .campaign import Record, Tally, pool, run_campaign
from .configs import CONFIGS
from .mutants import MUTANTS
from .notices import Notice, mutated, notice
from .run import explained, simulate

_PROGRESS_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="*", help=f"a name or pattern: {', '.join(CONFIGS)}")
    parser.add_argument("--seeds", default="0:100", metavar="A:B", help="from A up to, not including, B (0:100)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="what has been run is kept here, and skipped")
    parser.add_argument("--processes", type=int, help="as many as there are cores unless told")
    parser.add_argument("--minutes", type=float, help="end after this time, whatever is left")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run this seed and print its trace")
    parser.add_argument("--faults", help="with --trace: only faults at these steps happen (1,2,3, or none)")
    parser.add_argument("--tail", type=int, default=120, help="how many lines of a trace are printed")
    parser.add_argument("--mutant", choices=MUTANTS, help="with --trace: with one rule left out")
    parser.add_argument("--mutants", nargs="?", const="*", metavar="PATTERN", help="run the mutants")
    said = parser.parse_args()
    names = fnmatch.filter(CONFIGS, said.config)
    if not names:
        parser.error(f"no configuration is called {said.config!r}")
    if said.mutants is not None:
        return _mutants(fnmatch.filter(MUTANTS, said.mutants), said.processes)
    if said.trace is not None:
        return _trace(names[0], said)
    try:
        begin, end = map(int, said.seeds.split(":"))
    except ValueError:
        parser.error(f"--seeds is A:B, two whole numbers, not {said.seeds!r}")
    return _campaign(names, range(begin, end), said)


def _campaign(names: Sequence[str], seeds: range, said: argparse.Namespace) -> int:
    record = Record(said.record)
    began, told = time.monotonic(), time.monotonic()
    violations = []
    for tally in run_campaign(names, seeds, record, said.processes):
        for violation in tally.violations:
            violations.append(violation)
            print(violation, flush=True)
        now = time.monotonic()
        if now - told > _PROGRESS_S:
            told = now
            done = sum(record.tallies[name].seeds for name in names)
            print(f"[{now - began:.0f} s] {done} seeds, {len(violations)} violations", file=sys.stderr, flush=True)
        if said.minutes is not None and now - began > 60 * said.minutes:
            break
    whole = Tally("all")
    for name in names:
        tally = record.tallies[name]
        whole.add(tally)
        print(_line(tally))
    print(f"{_line(whole)}; {time.monotonic() - began:.0f} s now")
    return 1 if whole.violations else 0


def _line(tally: Tally) -> str:
    return (
        f"{tally.config}: {tally.seeds} seeds, {len(tally.violations)} violations; {tally.checkpoints} checkpoints,"
        f" {tally.faults} faults, {tally.steps} steps"
    )


def _trace(name: str, said: argparse.Namespace) -> int:
    faults = None
    if said.faults is not None:
        faults = frozenset(map(int, said.faults.split(","))) if said.faults != "none" else frozenset()
    with mutated(said.mutant):
        found = simulate(CONFIGS[name], said.trace, tracing=True, faults=faults)
        print("\n".join(found.lines[-said.tail :]))
        if found.violation is None:
            print(f"{name}, seed {said.trace}: nothing is violated; {found.checkpoints} checkpoints")
            return 0
        print((found if faults is not None else explained(CONFIGS[name], found)).report())
    return 1


def _mutants(names: Sequence[str], processes: int | None) -> int:
    broken, survivors = 0, 0
    with pool(processes) as workers:
        for found in workers.map(notice, names):
            broken += found.broken
            survivors += found.seed is None and not found.broken
            print(_notice(found), flush=True)
    print(f"{len(names)} mutants, {broken} broken, {survivors} survive")
    return 1 if broken or survivors else 0


def _notice(found: Notice) -> str:
    mutant = MUTANTS[found.mutant]
    if found.broken:
        where = f"{mutant.config} seed {found.seed}: " if found.seed is not None else ""
        return f"BROKEN {found.mutant}: {mutant.says}\n    {where}{found.said}"
    if found.seed is None:
        where = f"{mutant.seeds} seeds of {mutant.config} from {mutant.begin} on"
        return f"SURVIVES {found.mutant}: {mutant.says}\n    unnoticed in {where}"
    return f"{found.mutant}: {mutant.says}\n    {mutant.config} seed {found.seed}: {found.said}"


if __name__ == "__main__":
    sys.exit(main())
