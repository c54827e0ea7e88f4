"""The demo's job in memory: exact whatever fails, and visibly not exact where a fault is put into the code."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.demo.direct import totals_of
from penstock.cli.demo.faults import Fault, Injector, plan
from penstock.cli.demo.inputs import Question, cut
from penstock.cli.demo.job import OPERATOR, AddUp, demo_job
from penstock.cli.demo.report import Result, is_exact, read_result
from penstock.schemas.errors import JobError
from penstock.testing import LocalJob

RECORDS = 900


@pytest.fixture
def question(tmp_path: Path) -> Question:
    file = tmp_path / "numbers.csv"
    file.write_text("g,v\n" + "".join(f"g{n % 7},{Decimal(n) / 100}\n" for n in range(RECORDS)))
    return Question((str(file),), ("g",), "v")


def ran(
    question: Question, work: Path, adder: type[AddUp] = AddUp, faults: tuple[Fault, ...] = (), splits_wanted: int = 300
) -> tuple[Result | None, Injector]:
    """The job's result, after every fault has come and been survived."""
    splits = cut(question, splits_wanted)
    planned, _ = plan(len(splits), faults)
    job = demo_job(
        "demo", question, splits, subtasks=3, work=work, gates=tuple(p.gate for p in planned), pace_s=0.002, adder=adder
    )
    with LocalJob(job) as running:

        def ask(request: Any, timeout_s: float) -> Any:
            reply = running.client.request(OPERATOR, json.dumps(request).encode(), timeout_s)
            if not reply.accepted:
                raise JobError(reply.outcome)
            return json.loads(reply.payload)

        injector = Injector(ask, planned, seed=1, say=print).start()
        assert running.wait(60).ending.value == "finished"
        injector.stop()
    return read_result(work / "result.json"), injector


def test_without_faults_the_result_is_exact_and_every_event_is_handled(question: Question, tmp_path: Path) -> None:
    result, _ = ran(question, tmp_path)
    assert result is not None
    assert is_exact(result, totals_of(question))
    assert result.events_sent == result.events_handled == len(cut(question, 300)) + 3


@pytest.mark.parametrize("faults", [(Fault.RAISE,), (Fault.ROLL_BACK,), (Fault.RAISE, Fault.ROLL_BACK)])
def test_with_faults_the_result_is_exact(question: Question, tmp_path: Path, faults: tuple[Fault, ...]) -> None:
    result, injector = ran(question, tmp_path, faults=faults)
    assert result is not None
    assert is_exact(result, totals_of(question))
    assert dict(injector.injected) == {fault.value: 1 for fault in faults}
    assert result.events_sent == result.events_handled


class WrongOnceWhenReplayed(AddUp):
    """Its next split goes wrong once it sees that it is given again what its predecessor was given."""

    next_goes_wrong = False

    def handle_operator_event(self, event: Any) -> None:
        super().handle_operator_event(event)
        if "raise" in event:
            self.next_goes_wrong = True
        elif "split" in event and self.next_goes_wrong:
            self.next_goes_wrong = False
            self.go_wrong()

    def go_wrong(self) -> None:
        raise NotImplementedError


class DropsOneWhenReplayed(WrongOnceWhenReplayed):
    def go_wrong(self) -> None:
        self.queue.pop()


class HandlesOneTwiceWhenReplayed(WrongOnceWhenReplayed):
    def go_wrong(self) -> None:
        self.queue.append(self.queue[-1])


class AnswersTwice(AddUp):
    def _answer(self) -> None:
        super()._answer()
        self.answered = False
        super()._answer()


@pytest.mark.parametrize("adder", [DropsOneWhenReplayed, HandlesOneTwiceWhenReplayed])
def test_an_event_lost_or_doubled_by_a_replay_shows_in_the_sums(
    question: Question, tmp_path: Path, adder: type[AddUp]
) -> None:
    result, injector = ran(question, tmp_path, adder, faults=(Fault.RAISE,))
    assert injector.all_survived
    assert not is_exact(result, totals_of(question))


def test_an_answer_that_comes_twice_shows_in_the_sums(question: Question, tmp_path: Path) -> None:
    result, _ = ran(question, tmp_path, AnswersTwice)
    assert not is_exact(result, totals_of(question))


@pytest.mark.parametrize("records", [1, 2, 3, 5])
def test_a_small_input_ends_and_says_which_faults_it_is_too_small_for(tmp_path: Path, records: int) -> None:
    file = tmp_path / "small.csv"
    file.write_text("g,v\n" + "".join(f"g,{n}\n" for n in range(records)))
    question = Question((str(file),), ("g",), "v")
    faults = (Fault.RAISE, Fault.ROLL_BACK)
    planned, left_out = plan(len(cut(question, 300)), faults)
    assert len(planned) + len(left_out) == 2
    assert len(planned) == {1: 0, 2: 1}.get(records, 2)
    result, injector = ran(question, tmp_path, faults=faults)
    assert is_exact(result, totals_of(question))
    assert sum(injector.injected.values()) == len(planned)


def test_every_fault_comes_while_there_is_work_left() -> None:
    for splits in range(1, 200):
        planned, _ = plan(splits)
        assert all(0 < p.at < splits and p.at <= p.gate < splits for p in planned)
        assert [p.at for p in planned] == sorted({p.at for p in planned})
