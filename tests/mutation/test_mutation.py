"""Mutations are drawn by their seed, leave wording alone, and a gap in the tests shows."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest

from tests.mutation.mutations import Mutation, drawn, mutations, mutations_of
from tests.mutation.trial import Bounds, Verdict, judged


@pytest.fixture(scope="module")
def every() -> list[Mutation]:
    return mutations()


def test_a_seed_always_draws_the_same_mutations(every: list[Mutation]) -> None:
    assert drawn(every, 60, 1) == drawn(mutations(), 60, 1)
    assert drawn(every, 60, 1) != drawn(every, 60, 2)
    assert len({(mutation.path, mutation.node) for mutation in drawn(every, 60, 1)}) == 60


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("x = a < b <= c", ["a <= b <= c", "a < b < c"]),
        ("x = a == b", ["a != b"]),
        ("x = a is not b or c in d", ["a is not b and c in d", "a is b", "c not in d"]),
        ("x = a - b + len(c)", ["a - b - len(c)", "a + b"]),
        ("if a: b()", ["not a", "pass"]),
        ("x = [a for a in b if a < c]", ["a <= c", "not a < c"]),
        ("x = 3 if a else True", ["not a", "4", "2", "False"]),
        ("a.b[c] += d", ["pass", "a.b[c] -= d"]),
        ("a.b, c = d", ["pass"]),
        ("while a:\n        if b: continue\n        break", ["not b", "break", "continue"]),
        ("if a: return\n    b()\n    return", ["not a", "pass", "pass"]),
    ],
)
def test_code_is_mutated(body: str, codes: list[str]) -> None:
    found = [code for *_, code in mutations_of(f"def f():\n    {body}")]
    assert sorted(written(code) for code in found) == sorted(written(code) for code in codes)


def written(code: str) -> str:
    return ast.unparse(ast.parse(code)) if code not in ("break", "continue") else code


@pytest.mark.parametrize(
    "source",
    [
        'def f() -> str:\n    return "a" if b == 1 else "c"',
        'def f():\n    """Says what it does."""\n    raise ValueError(f"{a + 1}", b + 2)',
        'def f():\n    x = ", ".join(a for a in b if a > 1) or "none"',
        'def f():\n    x = f"{a + 1}" if b else "c"',
        "def f(a: int = 1, *, b: bool = True) -> 1:\n    assert a == b, 1",
        "class A:\n    x: int = 1\n\n    def __init__(self):\n        self.x = a",
        "def f():\n    x = [1] + a.b() + []",
    ],
)
def test_wording_checks_and_what_runs_only_once_are_left_alone(source: str) -> None:
    assert [code for *_, code in mutations_of(source) if code not in ("2", "0")] == []


@pytest.mark.parametrize(
    ("path", "function", "code"),
    [
        ("coordinator/protocol/liveness.py", "beat", "job.now + job.heartbeat.written_at"),
        ("subtask_client/protocol/hello.py", "welcome", "or welcome.attempt != core.attempt"),
        ("subtask_client/protocol/checkpoint_notifications.py", "aborted", "part.location is None"),
        ("checkpoint_log/history.py", "History._complete", "pass"),
        ("subtask_client/protocol/records.py", "follow_up", "core.position < running.reading.offset"),
    ],
)
def test_mutations_that_were_unnoticed_once_may_be_drawn(
    every: list[Mutation], path: str, function: str, code: str
) -> None:
    assert any(m.path == path and m.function == function and code in m.code for m in every)


def test_a_gap_in_the_tests_shows_and_closes(every: list[Mutation]) -> None:
    """The tests of the restart budget notice that it is counted wrongly; those of the gateway do not."""
    mutation = next(m for m in every if m.code == "len(self._counted) > s.budget")
    gap = Bounds(seeds=0, tests=["tests/coordinator/protocol/test_gateway.py"])
    closed = Bounds(seeds=0, tests=["tests/coordinator/protocol/test_restarts.py"])
    assert only(judged([mutation], gap, 1)).noticed_by is None
    noticed_by = only(judged([mutation], closed, 1)).noticed_by
    assert noticed_by is not None
    assert noticed_by.startswith("tests/coordinator/protocol/test_restarts.py::test_")


def test_a_mutation_that_hangs_is_noticed(every: list[Mutation]) -> None:
    found = only(judged(every[:1], Bounds(deadline_s=0.0), 1))
    assert found.noticed_by is not None
    assert found.noticed_by.startswith("not done within 0 s")


def only(verdicts: Iterable[Verdict]) -> Verdict:
    (verdict,) = verdicts
    return verdict
