"""A check that overrides call ``super()``, for subtasks that would lose records in silence without it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from ..schemas.errors import ConfigurationError
from ..subtask_client.api import Subtask

_MISSING_CALLS = {
    "__init__": ("it has no folder", "super().__init__(folder, ...)"),
    "open": ("it does not know whose files it writes", "super().open(context)"),
    "restore_state": (
        "files of the restored checkpoint might never become visible",
        "super().restore_state(checkpoint_id, state) with what super().snapshot_state() returned",
    ),
    "snapshot_state": (
        "the checkpoint would not name its files and their records would be lost",
        "super().snapshot_state(checkpoint_id) and make what it returns part of the state",
    ),
    "notify_checkpoint_complete": (
        "the files of the checkpoint would not become visible",
        "super().notify_checkpoint_complete(checkpoint_id)",
    ),
    "close": ("its unfinished file is left open", "super().close()"),
}
"""By method: what its absence does, and the call that is missing."""


class CheckedOverrides(Subtask):
    """A subtask whose own implementation of some methods must run whenever the method is called.

    The base names its methods in ``CHECKED``, and each of them ends with ``self._reached.add(name)``. The check is an
    attribute of the instance, so it stands around the outermost call. It makes no difference how many classes and
    mixins override the method, and from where ``super()`` is called.
    """

    CHECKED: ClassVar[tuple[str, ...]] = ()
    """Methods whose overrides must call ``super()``."""

    _reached: set[str]
    """Methods whose own implementation has returned since their last outermost call."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        self = super().__new__(cls)
        self._reached = set()
        base = _base(cls)
        for name in cls.CHECKED:
            if getattr(cls, name) is not getattr(base, name):
                self.__dict__[name] = functools.partial(self._call_checked, name, getattr(self, name))
        return self

    @property
    def _who(self) -> str:
        """The subtask, for messages."""
        return f"a {type(self).__name__}"

    def _call_checked(self, name: str, overridden: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._reached.discard(name)
        result = overridden(*args, **kwargs)
        if name in self._reached:
            return result
        if name == "open":
            context = args[0] if args else kwargs["context"]
            who = f"subtask {context.operator}/{context.subtask} of job {context.job!r}"
        else:
            who = self._who
        raise ConfigurationError(f"{who}: {_not_called(type(self), name)}")

    def _require_init(self) -> None:
        """Raise ConfigurationError if a subclass has not called ``super().__init__``."""
        if "__init__" not in self._reached:
            raise ConfigurationError(f"a {type(self).__name__}: {_not_called(type(self), '__init__')}")


def _base(cls: type[CheckedOverrides]) -> type:
    """The class whose implementations must run."""
    return next(c for c in cls.__mro__ if "CHECKED" in vars(c))


def _not_called(cls: type[CheckedOverrides], name: str) -> str:
    """Say which classes override the method and what is missing in them."""
    base = _base(cls)
    between = cls.__mro__[: cls.__mro__.index(base)]
    overrides = [f"{c.__name__}.{name}" for c in between if name in vars(c)]
    consequence, call = _MISSING_CALLS[name]
    which = overrides[0] if len(overrides) == 1 else f"one of {', '.join(overrides)}"
    return f"{which} did not call super().{name}, so {consequence}. Call {call}"
