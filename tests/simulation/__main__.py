"""``python -m tests.simulation --config NAME --seeds A:B``: runs seeds, tells what broke and how to see it again."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time

from .configs import CONFIGS
from .mutants import MUTANTS, mutated
from .run import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--config", default="*", help=f"a name or pattern: {', '.join(CONFIGS)}")
    parser.add_argument("--seeds", default="0:100", metavar="A:B")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run this seed and print its trace")
    parser.add_argument("--tail", type=int, default=120, help="how many lines of a trace are printed")
    parser.add_argument("--mutant", choices=MUTANTS, help="with one rule of a core left out")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many in one configuration")
    said = parser.parse_args()
    names = fnmatch.filter(CONFIGS, said.config)
    if not names:
        parser.error(f"no configuration is called {said.config!r}")
    begin, end = map(int, said.seeds.split(":")) if said.trace is None else (said.trace, said.trace + 1)
    bad = 0
    with mutated(said.mutant):
        for name in names:
            bad += _run(name, range(begin, end), said)
    return 1 if bad else 0


def _run(name: str, seeds: range, said: argparse.Namespace) -> int:
    failures: list[str] = []
    began, checkpoints, steps, ran = time.monotonic(), 0, 0, 0
    for seed in seeds:
        found = simulate(CONFIGS[name], seed, tracing=said.trace is not None)
        ran, checkpoints, steps = ran + 1, checkpoints + found.checkpoints, steps + found.steps
        if said.trace is not None:
            print("\n".join(found.lines[-said.tail :]))
        if found.violation is not None:
            failures.append(found.report())
            print(failures[-1], flush=True)
            if len(failures) >= said.failures:
                break
    seconds = time.monotonic() - began
    print(
        f"{name}: {ran} seeds, {len(failures)} bad; {checkpoints} checkpoints, {steps} steps, {seconds:.1f} s",
        flush=True,
    )
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
