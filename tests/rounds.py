"""How often a soak test repeats itself."""

from __future__ import annotations

import os

ROUNDS_VARIABLE = "PENSTOCK_SOAK_ROUNDS"


def rounds() -> range:
    """One round in an ordinary test run, as many as PENSTOCK_SOAK_ROUNDS says under ``make soak``.

    ::

        @pytest.mark.soak
        @pytest.mark.parametrize("round_", rounds())
        def test_...(round_: int) -> None: ...
    """
    said = os.environ.get(ROUNDS_VARIABLE, "1")
    if not said.isascii() or not said.isdigit() or int(said) < 1:
        raise ValueError(f"{ROUNDS_VARIABLE} is {said!r}; it must be a whole number, at least 1")
    return range(int(said))
