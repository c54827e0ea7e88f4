"""Rule sets: JSON checked against a user's dataclass by pydantic, in strict mode."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args, get_origin

from ..errors import ConfigurationError

Validate = Callable[[Any], object]
"""A user's own check of a rule set: raises, or returns a text (or False), if the set must not be used."""

_ERRORS_SHOWN = 5
_VALUE_CHARS = 80
_DIGEST_CHARS = 12


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A rule set that has been checked."""

    plain: Any
    """As JSON has it: what events and states hold."""
    digest: str
    """The first 12 hexadecimal digits of the SHA-256 of its JSON: equal sets have equal digests."""
    size: int
    """Bytes of its JSON."""


def rule_set_type(given: Any) -> Any:
    """Return the type of a rule set: ``list[Rule]`` for a dataclass, ``list[Rule]`` and ``dict[str, Rule]`` as given.

    Raises ConfigurationError for anything else, and where pydantic is missing or cannot check the dataclass.
    """
    hint = list[given] if isinstance(given, type) and dataclasses.is_dataclass(given) else given
    match get_origin(hint), get_args(hint):
        case (origin, (rule,)) if origin is list:
            pass
        case (origin, (key, rule)) if origin is dict and key is str:
            pass
        case _:
            rule = None
    if not isinstance(rule, type) or not dataclasses.is_dataclass(rule):
        raise ConfigurationError(
            f"rules are declared by a dataclass, Rules(Rule), or by list[Rule] or dict[str, Rule]; not by {given!r}"
        )
    _adapter(hint)
    return hint


@lru_cache(maxsize=64)
def _adapter(hint: Any) -> Any:
    try:
        from pydantic import ConfigDict, PydanticUserError, TypeAdapter
    except ImportError:
        raise ConfigurationError("rules need pydantic; pip install 'penstock-spark[rules]'") from None
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
        adapter.rebuild()  # raises where the name of a type cannot be resolved
    except (PydanticUserError, NameError, TypeError) as error:
        raise ConfigurationError(f"pydantic cannot check rules of type {hint}: {error}") from error
    return adapter


def objects(hint: Any, plain: Any) -> Any:
    """Return the rule set as objects of the user's dataclass.

    Raises ConfigurationError that names rule, field and value.
    """
    return _parsed(hint, _dumped(plain))


def check(hint: Any, plain: Any, validate: Validate | None, bytes_max: int) -> RuleSet:
    """Return the rule set if its types fit and ``validate`` has nothing against it; else raise ConfigurationError."""
    text = _dumped(plain)
    if len(text) > bytes_max:
        raise ConfigurationError(f"the rule set has {len(text)} bytes, and max_bytes allows {bytes_max}")
    rules = _parsed(hint, text)
    if validate is not None:
        try:
            against = validate(rules)
        except Exception as error:
            raise ConfigurationError(f"validate refused it: {type(error).__name__}: {error}") from error
        if against is not None and against is not True:
            raise ConfigurationError(f"validate refused it: it returned {against!r:.500}")
    return RuleSet(plain, hashlib.sha256(text).hexdigest()[:_DIGEST_CHARS], len(text))


def check_text(hint: Any, text: bytes, validate: Validate | None, bytes_max: int) -> RuleSet:
    """Return the rule set in a file or a record, as :func:`check` does."""
    if len(text) > bytes_max:
        raise ConfigurationError(f"the rule set has more than {bytes_max} bytes (max_bytes)")
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"it is not JSON: {error}; it begins with {text[:_VALUE_CHARS]!r}") from error
    return check(hint, plain, validate, bytes_max)


def as_plain(hint: Any, given: Any) -> Any:
    """Return a rule set that stands in a job file, of objects or of plain values, as plain values."""
    from pydantic_core import to_jsonable_python

    _adapter(hint)
    try:
        return to_jsonable_python(given)
    except ValueError as error:
        raise ConfigurationError(f"a rule set that JSON cannot hold: {error}") from error


def _dumped(plain: Any) -> bytes:
    # Without sorted keys: the order of the rules is part of a rule set.
    try:
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the rule set is not JSON: {error}") from error


def _parsed(hint: Any, text: bytes) -> Any:
    adapter = _adapter(hint)
    from pydantic import ValidationError

    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        told = [_told(hint, each) for each in found[:_ERRORS_SHOWN]]
        more = [f"and {len(found) - _ERRORS_SHOWN} more"] if len(found) > _ERRORS_SHOWN else []
        raise ConfigurationError("; ".join([*told, *more])) from error


def _told(hint: Any, error: Any) -> str:
    location, message = error["loc"], str(error["msg"])
    if error["type"] == "unexpected_keyword_argument":
        message = "there is no such field"
    if error["type"] not in ("missing", "unexpected_keyword_argument"):
        message += f", not {error['input']!r:.{_VALUE_CHARS}}"
    if not location:
        return f"the rule set: {message}"
    where = f"rule {location[0]!r}"
    if location[1:]:
        rule = get_args(hint)[-1]
        where += f", field {'.'.join(map(str, location[1:]))} of {rule.__name__}"
    return f"{where}: {message}"
