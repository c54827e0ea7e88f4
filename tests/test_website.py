"""The website is built without a warning, loads nothing from elsewhere, and its pages say what is true."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock.testing import LocalJob
from tests.dashboard.browser import Browser, find_chromium

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def website(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("website")
    options = ["--quiet", "--strict", "--config-file", str(ROOT / "website" / "mkdocs.yml"), "--site-dir", str(folder)]
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *options],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def documented(website: Path) -> set[str]:
    """Every name that the reference has an anchor for."""
    inventory = (website / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}


def test_every_public_name_is_in_the_reference(website: Path) -> None:
    public = set()
    for name in penstock.__all__:
        found = getattr(penstock, name)
        if not isinstance(found, ModuleType):
            public.add(f"penstock.{name}")
        elif name != "errors":
            public |= {f"{found.__name__}.{inside}" for inside in found.__all__}
    tree = importlib.import_module("penstock.schemas.errors")
    public |= {f"{tree.__name__}.{name}" for name, found in vars(tree).items() if isinstance(found, type)}
    assert len(public) > 100
    assert public - documented(website) == set()


def test_the_reference_has_every_command(website: Path) -> None:
    page = (website / "reference" / "commands.html").read_text(encoding="utf-8")
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Command line")[2].partition("\n## ")[0]
    named = set(re.findall(r"`penstock ([a-z]+)", table))
    assert len(named) > 12
    assert {command for command in named if f"penstock {command}" not in page} == set()


def test_no_page_loads_anything_from_elsewhere(website: Path) -> None:
    pages = list(website.rglob("*.html"))
    assert len(pages) > 40
    loads = re.compile(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]+|<link[^>]+href="(?:https?:)?//[^"]+')
    assert {page.name: found for page in pages if (found := loads.findall(page.read_text(encoding="utf-8")))} == {}


@pytest.mark.browser
def test_diagrams_and_the_search_work_in_files_without_a_network(
    website: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    find_chromium()
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        browser.go((website / "start.html").as_uri())
        drawn = "document.querySelector('div.mermaid')?.offsetHeight"  # the drawing itself is closed to scripts
        assert browser.wait_for(f"{drawn} > 100 && {drawn}") > 100
        browser.evaluate("document.querySelector('[data-md-toggle=search]').click()")
        browser.wait_text(".md-search-result__meta", "Type to start searching")
        browser.evaluate(
            "(field => { field.value = 'speculation'; field.dispatchEvent(new Event('keyup')); })"
            "(document.querySelector('input.md-search__input'))"
        )
        browser.wait_for("document.querySelector('.md-search-result__item a')?.href.includes('.html')")
        assert browser.evaluate(
            "[...document.querySelectorAll('.md-search-result__item a')].some(a => a.href.includes('/deploy.html'))"
        )
        loaded = browser.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert [url for url in loaded if not url.startswith("file:")] == []
        assert browser.messages == []


def test_the_messages_on_the_page_of_errors_are_those_of_the_code() -> None:
    folders = ["coordinator", "spark_integration", "cli", "client", "schemas", "subtask_client"]
    sources = "".join(
        path.read_text(encoding="utf-8") for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
    )
    quoted = re.findall(r"^\| `([^`]+)` \|", (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) > 12
    assert [words for words in quoted if words not in sources] == []


def test_the_job_of_the_first_page_has_the_sums_of_the_first_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "start.md").read_text(encoding="utf-8")
    (sleep,) = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    text = (ROOT / "cli" / "new_job" / "job.py.txt").read_text(encoding="utf-8")
    begin, found, rest = text.replace("JOB_NAME", "sums").partition("            yield number + 1, record")
    assert found
    slow = "import time\n" + begin + sleep.replace("0.02", "0.0001") + "\n" + found + rest
    names: dict[str, Any] = {"__name__": "job"}
    exec(slow, names)
    with LocalJob(names["job"]) as running:
        running.wait(timeout=60)
    said = set(capsys.readouterr().out.splitlines())
    assert said == {line for line in page.splitlines() if re.fullmatch(r"(red|green|blue): \d+", line)}
