"""Questions of many threads, asked together."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from penstock.schemas.errors import BrokerUnreachable, TransportError
from penstock.transport.request_coalescing import Together, _Round

DEADLINE_S = 30.0


class Server:
    """Answers with the double, once it may; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[set[int]] = []
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def answer(self, subjects: Collection[int]) -> dict[int, int]:
        self.asked.append(set(subjects))
        self.is_asked.set()
        assert self.may_answer.wait(DEADLINE_S)
        if 13 in subjects:
            raise KeyError(13)
        return {n: 2 * n for n in subjects}


class Asking(threading.Thread):
    def __init__(self, together: Together[int, int], *subjects: int) -> None:
        super().__init__(daemon=True)
        self.together, self.subjects = together, subjects
        self.answer: dict[int, int] | Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.together.ask(self.subjects, DEADLINE_S)
        except Exception as error:
            self.answer = error

    def heard(self) -> dict[int, int] | Exception | None:
        self.join(DEADLINE_S)
        return self.answer


def wait_until_gathered(together: Together[int, int], subjects: set[int]) -> None:
    ended = threading.Event()
    for _ in range(3_000):
        gathering = together._next
        if gathering is not None and gathering.subjects >= subjects:
            return
        ended.wait(0.01)
    raise AssertionError(f"{subjects} are not gathered")


def test_who_comes_while_a_question_is_open_is_asked_for_in_the_next_one() -> None:
    server = Server()
    together = Together(server.answer)
    first = Asking(together, 1)
    assert server.is_asked.wait(DEADLINE_S)
    others = [Asking(together, n, n + 100) for n in range(20, 70)]
    wait_until_gathered(together, set(range(20, 70)))
    server.may_answer.set()
    assert first.heard() == {1: 2}
    assert [other.heard() for other in others] == [{n: 2 * n, n + 100: 2 * n + 200} for n in range(20, 70)]
    assert server.asked == [{1}, {*range(20, 70), *range(120, 170)}]


def test_what_a_question_raises_reaches_all_who_were_part_of_it_and_nobody_else() -> None:
    server = Server()
    together = Together(server.answer)
    first = Asking(together, 1)
    assert server.is_asked.wait(DEADLINE_S)
    bad = [Asking(together, 13), Asking(together, 14)]
    wait_until_gathered(together, {13, 14})
    server.may_answer.set()
    assert first.heard() == {1: 2}
    assert [type(asking.heard()) for asking in bad] == [KeyError, KeyError]
    assert together.ask([15], DEADLINE_S) == {15: 30}


def test_a_question_about_nothing_is_answered_with_nothing() -> None:
    server = Server()
    server.may_answer.set()
    assert Together(server.answer).ask([], DEADLINE_S) == {}


@pytest.mark.parametrize("subjects", [[1], [2, 1]])
def test_one_thread_alone_is_answered_at_once(subjects: list[int]) -> None:
    server = Server()
    server.may_answer.set()
    assert Together(server.answer).ask(subjects, DEADLINE_S) == {n: 2 * n for n in subjects}


@pytest.mark.parametrize("while_it_waits_for_its_turn", [False, True])
def test_when_who_asks_is_interrupted_those_who_wait_are_told_and_the_next_are_served(
    while_it_waits_for_its_turn: bool,
) -> None:
    class Interrupted(BaseException):
        pass

    class Turn:
        """Stands in for what tells that it is one's turn: an interrupt comes while it is waited for."""

        def __enter__(self) -> None:
            gathered.wait(DEADLINE_S)
            raise Interrupted

        def __exit__(self, *_: object) -> None: ...

    def interrupted(subjects: Collection[int]) -> dict[int, int]:
        gathered.wait(DEADLINE_S)
        raise Interrupted

    gathered, caught = threading.Event(), threading.Event()
    together: Together[int, int] = Together(interrupted)
    turn = together._free
    if while_it_waits_for_its_turn:
        together._free = Turn()  # type: ignore[assignment]
    else:
        together._asked = _Round()  # so that the round is not asked before all are in it

    def lead() -> None:
        try:
            together.ask([1], DEADLINE_S)
        except Interrupted:
            caught.set()

    threading.Thread(target=lead, daemon=True).start()
    wait_until_gathered(together, {1})
    other = Asking(together, 2)
    wait_until_gathered(together, {1, 2})
    gathered.set()
    if not while_it_waits_for_its_turn:
        with turn:
            together._asked = None
            turn.notify()
    assert isinstance(other.heard(), TransportError)
    assert caught.wait(DEADLINE_S)
    together._ask, together._free = lambda subjects: {n: 2 * n for n in subjects}, turn
    assert together.ask([3], DEADLINE_S) == {3: 6}


def test_who_waits_for_another_ones_question_waits_no_longer_than_it_says() -> None:
    server = Server()
    together = Together(server.answer)
    asking = Asking(together, 1)
    assert server.is_asked.wait(DEADLINE_S)
    leads = Asking(together, 2)
    with pytest.raises(BrokerUnreachable, match=r"within 0\.05 s"):
        together.ask([3], 0.05)
    server.may_answer.set()
    assert asking.heard() == {1: 2}
    assert leads.heard() == {2: 4}


def test_who_leads_the_next_question_waits_no_longer_either_and_those_behind_hear_of_it() -> None:
    server = Server()
    together = Together(server.answer)
    asking = Asking(together, 1)
    assert server.is_asked.wait(DEADLINE_S)
    with pytest.raises(BrokerUnreachable):
        together.ask([2], 0.05)
    server.may_answer.set()
    assert asking.heard() == {1: 2}
    assert together.ask([4], DEADLINE_S) == {4: 8}
