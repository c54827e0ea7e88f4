"""Texts that records can carry."""

from __future__ import annotations

import pytest

from penstock.schemas.sanitize import TEXT_CHARS_MAX, LastError, recordable, told


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        ("as it is", "as it is"),
        (OSError("\udcff"), "OSError: \\udcff"),
        (Mute(), "Mute"),
        ("\x1b[2J\x9b1m\x00, \ta tab\r\nand a line", "\\x1b[2J\\x9b1m\\x00, \ta tab\nand a line"),
    ],
)
def test_told(error: BaseException | str, text: str) -> None:
    assert told(error) == text


def test_a_text_is_bounded() -> None:
    assert recordable("x" * TEXT_CHARS_MAX) == "x" * TEXT_CHARS_MAX
    cut = recordable("x" * (TEXT_CHARS_MAX + 1))
    assert len(cut) == TEXT_CHARS_MAX and cut.endswith(" ...")


class Unshowable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no")

    __str__ = __repr__


def test_errors_in_a_row_that_say_the_same_are_alike_also_where_they_cannot_be_shown() -> None:
    last = LastError()
    errors = [ValueError("a"), ValueError("a"), ValueError("b"), TypeError("b"), Unshowable(), Unshowable()]
    assert [last.is_like(error) for error in errors] == [False, True, False, False, False, True]
