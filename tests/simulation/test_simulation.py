"""A modest number of seeds of each configuration, and the proof that the checks can fail.

Thousands of seeds: ``python -m tests.simulation --config '*' --seeds 0:1000``.
"""

from __future__ import annotations

import pytest

from tests.rounds import rounds

from .configs import CONFIGS
from .mutants import MUTANTS, mutated
from .run import simulate

FIRST_SEED, SEEDS = 1000, 3


@pytest.mark.soak
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("round_", rounds())
def test_no_schedule_breaks_the_protocol(name: str, round_: int) -> None:
    for seed in range(FIRST_SEED + round_ * SEEDS, FIRST_SEED + (round_ + 1) * SEEDS):
        found = simulate(CONFIGS[name], seed)
        assert found.violation is None, found.report()


@pytest.mark.parametrize("name", MUTANTS)
def test_leaving_out_a_rule_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    with mutated(name):
        found = (simulate(CONFIGS[mutant.config], seed).violation for seed in range(mutant.seeds))
        noticed = next((said for said in found if said is not None), "")
    assert noticed.startswith(("G", "section")), (
        noticed or f"nothing in {mutant.seeds} seeds of {mutant.config} notices that this is left out: {mutant.says}"
    )


def test_a_seed_always_gives_the_same_history() -> None:
    one, other = (simulate(CONFIGS["replay2"], 7, tracing=True) for _ in range(2))
    assert one.lines == other.lines
    assert one.lines


def test_a_violation_names_the_sentence_and_the_command_that_shows_it_again() -> None:
    with mutated("handed-over-at-once"):
        found = next(f for seed in range(100) if (f := simulate(CONFIGS["replay1"], seed)).violation)
    assert found.violation is not None
    assert found.violation.startswith("section 7.2: ")
    assert f"python -m tests.simulation --config replay1 --trace {found.seed}" in found.report()
    assert found.lines[-1].split()[2].startswith("C"), "the trace ends with the coordinator's fatal step"
