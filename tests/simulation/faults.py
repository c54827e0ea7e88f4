"""What nothing but bad luck asks for."""

from __future__ import annotations

from typing import Any


class Fault(tuple[Any, ...]):
    """An action of the scheduler (weight, what to call, its arguments...) that a history can do without."""

    __slots__ = ()

    def __new__(cls, weight: float, *act: Any) -> Fault:
        return super().__new__(cls, (weight, *act))
