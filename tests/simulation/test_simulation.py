"""Some thousand seeds, and the proof that the checks can fail.

More seeds: ``python -m tests.simulation --seeds 0:1000``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rounds import rounds
from tests.simulation import campaign
from tests.simulation.campaign import Record, Tally, run_campaign, run_seeds
from tests.simulation.configs import CONFIGS, Shape
from tests.simulation.edits import Insert
from tests.simulation.mutants import MUTANTS
from tests.simulation.notices import Notice, mutated, notice
from tests.simulation.run import explained, simulate

FIRST_SEED, SEEDS, SEEDS_OF_GRAPHS, SEEDS_OF_QUERIES = 1000, 24, 5, 16


def seeds_of(name: str, round_: int, share: str) -> range:
    """Return the first quarter of a round's seeds, or the rest.

    There are fewer where operators feed one another: one of these takes as long as several of the others.
    """
    count = SEEDS if CONFIGS[name].shape is Shape.NONE else SEEDS_OF_GRAPHS
    count = SEEDS_OF_QUERIES if CONFIGS[name].driven_by_query else count
    begin, first = FIRST_SEED + round_ * count, count // 4
    return range(begin, begin + first) if share == "first" else range(begin + first, begin + count)


@pytest.mark.soak
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("share", ["first", pytest.param("rest", marks=pytest.mark.more)])
@pytest.mark.parametrize("round_", rounds())
def test_no_schedule_breaks_the_protocol(name: str, share: str, round_: int) -> None:
    seeds = seeds_of(name, round_, share)
    tally = run_seeds(name, seeds)
    assert not tally.violations, tally.violations[0]
    assert tally.seeds == len(seeds)
    assert tally.checkpoints > 0 or share == "first", "some configurations stop early: the rest completes checkpoints"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_leaving_out_a_rule_is_noticed(mutant: str) -> None:
    found, rule = notice(mutant), MUTANTS[mutant]
    assert not found.broken, f"the edited code cannot run: {found.said}"
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


def test_an_interrupted_campaign_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file, batch = tmp_path / "seeds.jsonl", campaign.SEEDS_AT_ONCE
    seeds = range(3 * batch)
    record = Record(file)
    assert next(run_campaign(["calm"], seeds, record, 1)).seeds == batch
    resumed = Record(file)
    assert resumed.tallies["calm"].seeds == batch
    assert sum(tally.seeds for tally in run_campaign(["calm"], seeds, resumed, 1)) == 2 * batch
    assert resumed.tallies["calm"].seeds == len(seeds)
    assert list(run_campaign(["calm"], seeds, Record(file), 1)) == []


def test_a_campaign_gives_every_configuration_seeds_before_any_gets_more() -> None:
    names = ["calm", "replay1", "reset2"]
    tallies = run_campaign(names, range(2 * campaign.SEEDS_AT_ONCE), Record(None), 1)
    assert sorted(next(tallies).config for _ in names) == sorted(names)
    tallies.close()


def test_seeds_of_other_sources_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "seeds.jsonl"
    Record(file).keep("calm", range(20), Tally("calm", seeds=20))
    monkeypatch.setattr(campaign, "_fingerprint", lambda: "other")
    assert Record(file).tallies["calm"].seeds == 0


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("no_such_name", "NameError"),
        ("raise UnboundLocalError", "UnboundLocalError"),
        ("job.no_such_attribute", "AttributeError"),
        ("pending.acks + 1", "TypeError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("no code", "SyntaxError"),
    ],
)
def test_code_that_cannot_run_counts_as_broken_not_as_noticed(
    monkeypatch: pytest.MonkeyPatch, code: str, error: str
) -> None:
    monkeypatch.setitem(MUTANTS, "no-release-below", replace(MUTANTS["no-release-below"], change=Insert(code)))
    found = notice("no-release-below")
    assert found.broken
    assert found.said.startswith(error)


def test_a_rule_that_nothing_notices_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = replace(MUTANTS["no-release-below"], change=Insert("pending.times = pending.times"), seeds=2)
    monkeypatch.setitem(MUTANTS, "no-release-below", rule)
    assert notice("no-release-below") == Notice("no-release-below", None, "")
