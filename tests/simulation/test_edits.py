"""Markers in the source, and edits of what they mark."""

from __future__ import annotations

import ast
import inspect

import pytest

from penstock.coordinator.protocol import gateway
from penstock.coordinator.protocol.gateway import GatewayState
from tests.simulation import markers
from tests.simulation.edits import Always, Early, Edit, Insert, Never, Put, Skip, edited, running
from tests.simulation.mutants import MUTANTS


def test_every_mutant_has_its_markers_and_every_marker_its_mutant() -> None:
    wanted = {marker for name, mutant in MUTANTS.items() for marker in mutant.edits(name)}
    assert wanted == markers.markers().keys()


def test_a_marker_that_is_missing_is_named() -> None:
    with (
        pytest.raises(LookupError, match=r"no code of the cores is marked .*# mutant: no-such-rule"),
        edited({"no-such-rule": Skip()}),
    ):
        pass


def test_a_marker_that_stands_twice_is_named_with_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "source_of", lambda path: "x = 1  # mutant: rule\ny = 1  # mutant: rule\n")
    monkeypatch.setattr(markers, "core_files", lambda: ["a.py"])
    with pytest.raises(LookupError, match=r"'rule' stands twice: a\.py:1 and a\.py:2"):
        markers.markers.__wrapped__()


def after(source: str, edit: Edit) -> str:
    """Return the source with the edit at its marker ``rule``."""
    tree = ast.parse(source)
    (line,) = (line for name, line in markers.markers_in(source) if name == "rule")
    edit.apply(markers.marked_node(tree, source, line))
    return ast.unparse(tree)


def written(source: str) -> str:
    return ast.unparse(ast.parse(source))


@pytest.mark.parametrize(
    ("source", "edit", "expected"),
    [
        ("if a:  # mutant: rule\n    b()", Never(), "if False:\n    b()"),
        ("while a:  # mutant: rule\n    b()", Always(), "while True:\n    b()"),
        ("if a:\n    b()\nelif c:  # mutant: rule\n    d()", Never(), "if a:\n    b()\nelif False:\n    d()"),
        ("x = (\n    a\n    if b  # mutant: rule\n    else c\n)", Always(), "x = a if True else c"),
        ("x = [a for a in b\n    if a and c  # mutant: rule\n]", Never(), "x = [a for a in b if False]"),
        ("x = (\n    a\n    and b  # mutant: rule\n)", Always(), "x = a and True"),
        ("a()  # mutant: rule\nb()", Skip(), "pass\nb()"),
        ("x = [\n    *a,  # mutant: rule\n    b,\n]", Skip(), "x = [b]"),
        ("f(\n    a,\n    b=c,  # mutant: rule\n)", Skip(), "f(a)"),
        ("x = (\n    a  # mutant: rule\n    and b\n)", Skip(), "x = True and b"),
        ("x = (\n    a\n    # mutant: rule\n    or b\n)", Skip(), "x = a or False"),
        ("a()  # mutant: rule", Put("b()\nreturn c"), "b()\nreturn c"),
        ("f(\n    a=b,  # mutant: rule\n)", Put("c"), "f(a=c)"),
        ("x = [\n    a,  # mutant: rule\n]", Put("*a, b"), "x = [*a, b]"),
        ("x = (\n    a\n    + b  # mutant: rule\n)", Put("c"), "x = a + c"),
        ("x = f(\n    a\n    - b  # mutant: other, rule\n)", Put("c"), "x = f(a - c)"),
        ("a()  # why  # mutant: rule", Insert("if b: return c"), "if b: return c\na()"),
        ("a()\n# mutant: rule\n# and why\nfor b in c:\n    d()", Early(), "for b in c:\n    d()\na()"),
        ("x = [\n    a,\n    b,  # mutant: rule\n]", Early(), "x = [b, a]"),
    ],
)
def test_an_edit_changes_the_node_that_is_marked(source: str, edit: Edit, expected: str) -> None:
    assert after(source, edit) == written(expected)


@pytest.mark.parametrize(
    ("source", "edit", "why"),
    [
        ("a()  # mutant: rule", Never(), "'a\\(\\)' has no condition"),
        ("a()  # mutant: rule", Early(), "'a\\(\\)' is the first already"),
        ("x = -(\n    a  # mutant: rule\n)", Skip(), "'a' has no siblings"),
    ],
)
def test_an_edit_that_the_marked_code_cannot_have_says_why(source: str, edit: Edit, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        after(source, edit)


def test_a_marker_where_no_code_begins_says_so() -> None:
    with pytest.raises(LookupError, match=r"no code .* begins on line 2: '\)"):
        after("x = f(a\n)  # mutant: rule", Skip())


def test_edited_functions_get_their_own_code_back() -> None:
    own = GatewayState.hold.__code__
    tree = ast.parse(inspect.getsource(gateway).replace("return False", "return True"))
    with running({gateway: tree}):
        assert GatewayState.hold.__code__ is not own
        assert GatewayState().close(1)
    assert GatewayState.hold.__code__ is own
    assert not GatewayState().close(1)


def test_code_that_runs_as_before_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"no function of penstock\.coordinator\.protocol\.gateway is changed"),
        running({gateway: ast.parse(inspect.getsource(gateway))}),
    ):
        pass
