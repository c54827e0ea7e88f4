"""What the website needs beyond its pages: the page of commands, and links that lead out of it."""

from __future__ import annotations

import re
from typing import Any

import typer.cli
from mkdocs.structure.files import File, Files
from typer.main import get_command

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the page of commands, written from their help."""
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files that are in the repository and not on the website, in place of a link to them."""
    return _OUTSIDE.sub(r"\1 (`\2` in the repository)", markdown)


def commands() -> str:
    """Every command with its options, as Markdown."""
    from penstock.cli.app import app

    command = get_command(app)
    with typer.Context(command, info_name="penstock") as context:
        return typer.cli.get_docs_for_click(obj=command, ctx=context, name="penstock", title="Commands")
