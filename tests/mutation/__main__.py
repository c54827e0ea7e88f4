"""``python -m tests.mutation``: draws mutations of the protocol cores, and tells which of them nothing notices.

--count N --seed S         so many mutations, drawn by this seed
--replay NUMBER            one of them again
--only FILE:LINE           every mutation of the code that begins on this line
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.simulation.markers import CORES

from .mutations import Mutation, drawn, mutations
from .trial import Bounds, Verdict, judged


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=60, help="how many mutations are drawn (60)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn by (1)")
    parser.add_argument("--replay", type=int, metavar="NUMBER", help="run the mutation of this number")
    parser.add_argument("--only", metavar="FILE:LINE", help="run every mutation of this line")
    parser.add_argument("--seeds", type=int, default=Bounds().seeds, help="of each configuration of the simulator")
    parser.add_argument("--deadline", type=float, default=Bounds().deadline_s, help="seconds for one mutation")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="one for each core unless told")
    said = parser.parse_args()
    chosen = _chosen(mutations(), said)
    if not chosen:
        parser.error("there is no such mutation")
    bounds = Bounds(said.seeds, said.deadline)
    verdicts: list[Verdict] = []
    try:
        for verdict in judged(CORES, replace(bounds, seeds=min(1, bounds.seeds)), said.processes):
            if verdict.noticed_by is not None:
                print(f"{verdict.subject} fails without any mutation: {verdict.noticed_by}", file=sys.stderr)
                return 2
        for verdict in judged(chosen, bounds, said.processes):
            verdicts.append(verdict)
            print(_told(verdict, f"[{len(verdicts)}/{len(chosen)}]"), flush=True)
    except KeyboardInterrupt:
        print("broken off")
    survivors = [verdict for verdict in verdicts if verdict.noticed_by is None]
    if survivors:
        print("\nsurvivors:")
        for verdict in survivors:
            print(_told(verdict, "-"))
    noticed = len(verdicts) - len(survivors)
    share = 100 * noticed / max(1, len(verdicts))
    print(f"{len(verdicts)} of {len(chosen)} mutations have run: {noticed} noticed ({share:.1f} %)")
    return 1 if survivors else 0


def _chosen(every: Sequence[Mutation], said: argparse.Namespace) -> Sequence[Mutation]:
    if said.replay is not None:
        return [mutation for mutation in every if mutation.number == said.replay]
    if said.only is not None:
        return [mutation for mutation in every if f"{mutation.path}:{mutation.line}" == said.only]
    return drawn(every, said.count, said.seed)


def _told(verdict: Verdict, head: str) -> str:
    mutation = verdict.subject
    assert isinstance(mutation, Mutation)
    came_to = f"noticed by {verdict.noticed_by}" if verdict.noticed_by is not None else "SURVIVES"
    where = f"{mutation.path}:{mutation.line} {mutation.function} (--replay {mutation.number}, {verdict.took_s:.0f} s)"
    return f"{head} {where}\n{mutation.diff()}\n  {came_to}"


if __name__ == "__main__":
    sys.exit(main())
