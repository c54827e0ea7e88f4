"""Texts on their way into records: an error's message may be of any size, and need not even be Unicode."""

from __future__ import annotations

TEXT_CHARS_MAX = 4_000

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""A terminal that shows a text obeys what stands in it: these are shown as what they are."""


def recordable(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """``text`` as a record can carry it, and anybody show it: bounded, without control characters but tabs and ends of
    lines, and without lone surrogates (they come from undecodable names)."""
    text = text.replace("\r\n", "\n").translate(_CONTROLS)
    if len(text) > chars_max:
        text = text[: chars_max - 4] + " ..."
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def told(error: BaseException | str) -> str:
    """What user code raised, or gave as a cause, in words that a record can carry."""
    if isinstance(error, str):
        return recordable(error)
    try:
        says = str(error)
    except Exception:  # its own __str__ raises
        says = ""
    return recordable(f"{type(error).__name__}: {says}" if says else type(error).__name__)


class LastError:
    """The error before, so that the traceback of failures in a row that are alike is logged once."""

    def __init__(self) -> None:
        self._told: str | None = None

    def is_like(self, error: BaseException) -> bool:
        """Return whether it has the type and the message of the one before; from now on it is that one."""
        before, self._told = self._told, told(error)
        return before == self._told
