"""`penstock doctor --spark`: the settings of a Spark session, as given, before there is one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..schemas.errors import PenstockError
from .exits import UsageError


def settings_of(master: str | None, properties_file: Path | None, conf: Iterable[str]) -> dict[str, str]:
    """What spark-submit would make of these: the file's lines, and over them ``--conf`` and ``--master``.

    Without a file, ``spark-defaults.conf`` in SPARK_CONF_DIR, or in SPARK_HOME/conf, where there is one. Raises
    UsageError for a file that cannot be read, and for a ``--conf`` that is no NAME=VALUE.
    """
    file = properties_file or _default_file()
    found = {} if file is None else _properties(file)
    for given in conf:
        name, equals, value = given.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--conf {given!r} is no NAME=VALUE, as --conf spark.task.maxFailures=1000000")
        found[name.strip()] = value.strip()
    if "SPARK_REMOTE" in os.environ:
        found.setdefault("spark.remote", os.environ["SPARK_REMOTE"])
    if master is not None:
        found["spark.master"] = master
    return found


def _default_file() -> Path | None:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (None if home is None else str(Path(home, "conf")))
    file = None if folder is None else Path(folder, "spark-defaults.conf")
    return file if file is not None and file.is_file() else None


def _properties(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the Spark settings in {file} cannot be read: {error}") from error
    found = {}
    for line in map(str.strip, lines):
        if line and not line.startswith(("#", "!")):
            name, _, value = line.replace("=", " ", 1).partition(" ") if _equals_first(line) else line.partition(" ")
            found[name.strip()] = value.strip()
    return found


def _equals_first(line: str) -> bool:
    """Whether the name ends with an equals sign, not with a space."""
    return "=" in line.split(None, 1)[0]


def spark_findings(settings: Mapping[str, str], subtasks: int | None) -> Iterator[tuple[str, str, str, str]]:
    """check, state, found and remedy of each rule."""
    # Spark's packages take long to load, and only this needs them.
    from ..spark_integration.session_checks import SessionFacts
    from ..spark_integration.settings_check import examine

    facts = SessionFacts(settings.get("spark.master", "local[*]"), settings, os.cpu_count() or 1, list)
    try:
        for advice in examine(facts, subtasks):
            yield advice.check, advice.verdict.value, advice.found, advice.remedy
    except PenstockError as error:
        yield "spark", "missing", str(error), ""
