"""Docstrings as Markdown: what Sphinx writes as a role is code, and what it writes as a literal block is one."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|mod|func|meth|attr|exc|data):`~?\.?([^`]+)`")
_LITERAL = re.compile(r"^(.*?)[ \t]*::$", re.MULTILINE)


def markdown(docstring: str) -> str:
    """``docstring`` with the roles and literal blocks of reStructuredText turned into Markdown."""
    text = _ROLE.sub(r"`\1`", docstring)
    return _LITERAL.sub(lambda found: f"{found[1]}:" if found[1] else "", text)


class Docstrings(griffe.Extension):
    """Turns each docstring into Markdown when it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
