"""What the website needs beyond its pages: the page of commands, scripts for use offline, links that lead out of it."""

from __future__ import annotations

import re
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import typer.cli
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from typer.main import get_command

from penstock.broker import BrokerError, ivy
from penstock.broker.folders import cache_folder
from penstock.broker.pinned_jars import Pin

MERMAID = Pin(
    "org.webjars.npm",
    "mermaid",
    "11.14.0",
    "fcc17f377c0f657513a66735d41a3095cad37e8059d80e2d80d39f91458cfbed",
    16_257_239,
)
"""What draws the diagrams. The theme would load it from the network when a page is read."""

_FETCH_TIMEOUT_S = 300.0
_DIAGRAMS = "assets/mermaid.min.js"
_WORKER = "assets/iframe-worker.js"
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the page of commands, written from their help, and the scripts."""
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, _DIAGRAMS, content=mermaid()))
    files.append(File.generated(config, _WORKER, abs_src_path=str(Path(__file__).with_name("iframe-worker.js"))))
    return files


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Load what draws diagrams where there are some, before the theme looks for it."""
    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{get_relative_url(_DIAGRAMS, page.url)}"></script>'
    return output.replace("</head>", f"{script}</head>", 1)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files that are in the repository and not on the website, in place of a link to them."""
    return _OUTSIDE.sub(r"\1 (`\2` in the repository)", markdown)


def mermaid() -> bytes:
    """Return the script that draws diagrams; its jar is fetched once, and verified always."""
    jar = cache_folder() / MERMAID.file_name
    if not MERMAID.matches(jar):
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent, prefix=".fetch-") as folder:
            fetched = Path(folder, MERMAID.file_name)
            try:
                ivy.download([MERMAID], fetched.parent, time.monotonic() + _FETCH_TIMEOUT_S, lambda *_: None)
            except BrokerError as error:
                raise PluginError(f"{MERMAID.file_name}, which draws the diagrams, is missing: {error}") from error
            if not MERMAID.matches(fetched):
                raise PluginError(f"{MERMAID.file_name} was fetched with another SHA-256 than {MERMAID.sha256}")
            fetched.replace(jar)
    with zipfile.ZipFile(jar) as archive:
        return archive.read(f"META-INF/resources/webjars/mermaid/{MERMAID.version}/dist/mermaid.min.js")


def commands() -> str:
    """Every command with its options, as Markdown."""
    from penstock.cli.app import app

    command = get_command(app)
    with typer.Context(command, info_name="penstock") as context:
        return typer.cli.get_docs_for_click(obj=command, ctx=context, name="penstock", title="Commands")
