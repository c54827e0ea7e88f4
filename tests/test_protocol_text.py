"""``docs/protocol.md``: its rules are numbered, what is cited is there, and its tables are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.coordinator.protocol.pending import Step
from penstock.coordinator.protocol.state import SlotPhase
from penstock.subtask_client.protocol.phases import TRANSITIONS, Phase, Transition

ROOT = Path(__file__).parents[1]
PROTOCOL = ROOT / "docs" / "protocol.md"
TEXT = PROTOCOL.read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
HEADINGS = set(re.findall(r"^##+ (\d+(?:\.\d+)?)\.? ", PROSE, re.MULTILINE))
RULES: list[str] = re.findall(r"^\*\*P-([\d.]+)\*\* ", PROSE, re.MULTILINE)
BEGIN, END = "<!-- the table of phases: begin -->\n", "<!-- the table of phases: end -->"


def table_of_phases() -> str:
    """Return what moves an instance from phase to phase, as Markdown."""
    lines = ["| in | " + " | ".join(Transition) + " |", "|---" * (len(Transition) + 1) + "|"]
    for phase in Phase:
        cells = (TRANSITIONS.get((phase, turn)) for turn in Transition)
        lines.append(f"| {phase} | " + " | ".join("-" if to is None else str(to) for to in cells) + " |")
    return "\n".join(lines) + "\n"


def sources() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*.py")):
        inside = path.relative_to(ROOT).parts
        if not any(part.startswith(".") or part in ("build", "dist") for part in inside):
            yield path


def test_the_table_of_phases_is_the_one_that_the_code_obeys() -> None:
    assert TEXT.split(BEGIN)[1].split(END)[0] == table_of_phases()


@pytest.mark.parametrize(("section", "columns", "states"), [("## 7. ", 1, Step), ("## 8. ", 2, SlotPhase)])
def test_a_table_of_states_names_each_state_of_the_code_and_no_other(
    section: str, columns: int, states: type[Step | SlotPhase]
) -> None:
    rows = [line for line in PROSE.split(section)[1].split("### ")[0].splitlines() if line.startswith("|")][2:]
    cells = [cell.strip() for row in rows for cell in row.split("|")[1 : columns + 1]]
    assert {name for cell in cells for name in cell.split(", ")} == {str(state) for state in states}


def test_rules_are_numbered_in_order_within_their_section() -> None:
    counted: dict[str, int] = {}
    for rule in RULES:
        section, _, number = rule.rpartition(".")
        assert section in HEADINGS, f"P-{rule} stands in no section {section}"
        assert int(number) == counted.get(section, 0) + 1, f"P-{rule} is out of order"
        counted[section] = int(number)
    assert len(RULES) > 100


def test_no_line_of_prose_is_longer_than_a_hundred_characters() -> None:
    assert [line for line in TEXT.splitlines() if len(line) > 100 and not line.startswith("|")] == []


def test_sections_and_rules_that_code_and_tests_cite_are_there() -> None:
    known, missing = HEADINGS | set(RULES), []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        cited = re.findall(r"[Ss]ection (\d+(?:\.\d+)?)\b", text) + re.findall(r"\bP-(\d+(?:\.\d+)+)\b", text)
        missing += [f"{path.relative_to(ROOT)}: {each}" for each in cited if each not in known]
    assert missing == []
