"""Some thousand seeds, and the proof that the checks can fail.

More seeds: ``python -m tests.simulation --seeds 0:1000``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.simulation import campaign, edits
from tests.simulation.campaign import Record, Tally, run_campaign, run_seeds
from tests.simulation.configs import CONFIGS, Shape
from tests.simulation.mutants import MUTANTS, Notice, mutated, notice
from tests.simulation.run import explained, simulate

FIRST_SEED, SEEDS, SEEDS_OF_GRAPHS, SEEDS_OF_QUERIES = 1000, 40, 8, 30
DEADLINE_S = 280


def seeds_of(name: str, round_: int) -> range:
    """Fewer where operators feed one another: one of these takes as long as several of the others."""
    count = SEEDS if CONFIGS[name].shape is Shape.NONE else SEEDS_OF_GRAPHS
    count = SEEDS_OF_QUERIES if CONFIGS[name].batches else count
    return range(FIRST_SEED + round_ * count, FIRST_SEED + (round_ + 1) * count)


@pytest.fixture(scope="module")
def seeds_run(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, int], Future[Tally]]]:
    """Everything that this session selected of the configurations, under way on all cores."""
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = [item.callspec.params for item in here if "round_" in item.callspec.params]
    with campaign.pool() as workers:
        yield {
            (params["name"], params["round_"]): workers.submit(
                run_seeds, params["name"], seeds_of(params["name"], params["round_"])
            )
            for params in chosen
        }
        workers.shutdown(wait=False, cancel_futures=True)


@pytest.mark.soak
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("round_", rounds())
def test_no_schedule_breaks_the_protocol(
    seeds_run: dict[tuple[str, int], Future[Tally]], name: str, round_: int
) -> None:
    tally = seeds_run[name, round_].result(DEADLINE_S)
    assert not tally.violations, tally.violations[0]
    assert tally.seeds == len(seeds_of(name, round_))
    assert tally.checkpoints > 0


@pytest.fixture(scope="module")
def mutants_run(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Notice]]]:
    chosen = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = [params["mutant"] for params in chosen if params.get("mutant") in MUTANTS]
    with campaign.pool() as workers:
        yield {name: workers.submit(notice, name) for name in names}
        workers.shutdown(wait=False, cancel_futures=True)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_leaving_out_a_rule_is_noticed(mutants_run: dict[str, Future[Notice]], mutant: str) -> None:
    found, rule = mutants_run[mutant].result(DEADLINE_S), MUTANTS[mutant]
    assert found.seed is not None, f"nothing in {rule.seeds} seeds of {rule.config} notices: {rule.says}"


def test_a_seed_always_gives_the_same_history() -> None:
    one, other = (simulate(CONFIGS["replay2"], 7, tracing=True) for _ in range(2))
    assert one.lines == other.lines
    assert one.lines


def test_a_violation_is_shown_with_few_faults_and_the_command_that_shows_it_again() -> None:
    config = CONFIGS["everything-replay"]
    with mutated("inbox-position-late"):
        found = next(f for seed in range(100) if (f := simulate(config, seed)).violation)
        shown = explained(config, found)
        again = simulate(config, found.seed, faults=frozenset(shown.faults))
    assert shown.violation is not None
    assert shown.sentence == found.sentence == "G3"
    assert len(shown.faults) < shown.happened == len(found.faults)
    assert again.violation == shown.violation
    faults = ",".join(map(str, shown.faults)) or "none"
    assert f"--config everything-replay --trace {found.seed} --faults {faults}" in shown.report()
    assert shown.lines


def test_without_faults_none_happen() -> None:
    calm = simulate(CONFIGS["everything-replay"], 3, faults=frozenset())
    assert (calm.faults, calm.violation) == ([], None)
    assert simulate(CONFIGS["everything-replay"], 3).faults


def test_a_campaign_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    file = tmp_path / "seeds.jsonl"
    record = Record(file)
    first = next(run_campaign(["calm"], range(60), record, 1))
    assert first.seeds == campaign.SEEDS_AT_ONCE
    resumed = Record(file)
    assert resumed.tallies["calm"].seeds == 20
    rest = sum(tally.seeds for tally in run_campaign(["calm"], range(60), resumed, 1))
    assert rest == 40
    assert resumed.tallies["calm"].seeds == 60
    assert list(run_campaign(["calm"], range(60), Record(file), 1)) == []


def test_seeds_of_other_sources_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "seeds.jsonl"
    Record(file).keep("calm", range(20), Tally("calm", seeds=20))
    monkeypatch.setattr(campaign, "_fingerprint", lambda: "other")
    assert Record(file).tallies["calm"].seeds == 0


def test_a_mutant_whose_rule_has_moved_says_so() -> None:
    edit = edits.Edit(campaign, "no such line", "")
    with (
        pytest.raises(LookupError, match=r"tests\.simulation\.campaign has 0 times, not once.*'no such line'"),
        edits.edited([edit]),
    ):
        pass


def test_edited_functions_get_their_own_code_back() -> None:
    with edits.edited([edits.Edit(campaign, "return tally\n", "return None\n")]):
        assert run_seeds("calm", []) is None
    assert run_seeds("calm", []) == Tally("calm")
