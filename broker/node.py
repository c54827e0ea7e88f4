"""The folder that a broker lives in: its settings, its formatted data, its logs, and the command that runs it."""

import base64
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .atomic import replace_text
from .errors import BrokerStartFailed, InvalidDataPath, JarsUnavailable
from .ivy import pyspark_jar
from .jars import jar_cache
from .ports import HOST
from .settings import LISTENER, NODE_ID, Member, render, server_properties

_QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_LOGGING_JARS = ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
_SEED = "bootstrap.checkpoint"
_TAIL_LINES = 25
_READ_BYTES_MAX = 1_000_000
_LOG_LINE = re.compile(r"[-\d]{10} [:.\d]{12} (\w+) ")
"""As log4j2.properties lays them out."""


@dataclass(frozen=True)
class Node:
    """One node's folder `data_dir` (absolute), with what the caller adds to its settings and its formatting."""

    data_dir: Path
    extra_properties: Mapping[str, str] = field(default_factory=dict)
    format_arguments: Sequence[str] = ()
    member: Member | None = None
    """None: it is alone."""

    @property
    def lock_file(self) -> Path:
        return self.data_dir / "in-use.lock"

    @property
    def log_file(self) -> Path:
        return self.data_dir / "broker.log"

    @property
    def stderr_file(self) -> Path:
        return self.data_dir / "broker.err"

    @property
    def _topics(self) -> Path:
        return self.data_dir / "topics"

    @property
    def _settings_file(self) -> Path:
        return self.data_dir / "server.properties"

    @property
    def cluster_id(self) -> str:
        """The id that the data was formatted with."""
        for line in (self._topics / "meta.properties").read_text().splitlines():
            key, _, value = line.partition("=")
            if key == "cluster.id":
                return value
        raise BrokerStartFailed(f"{self._topics}/meta.properties names no cluster.id: it is damaged; restore the data")

    @property
    def last_port(self) -> int | None:
        """Where clients found the broker the last time; None before the first start."""
        try:
            found = re.search(rf"{LISTENER}://{re.escape(HOST)}:(\d+)", self._settings_file.read_text("ascii"))
        except (OSError, ValueError):
            return None
        return int(found[1]) if found else None

    def create(self) -> None:
        """Make the folder, for its user alone. Raises InvalidDataPath when Kafka could not keep its data there."""
        if "," in str(self.data_dir):
            raise InvalidDataPath(
                f"Kafka takes a comma for the end of a path, and {self.data_dir} has one: choose another data folder"
            )
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._topics.mkdir(mode=0o700, exist_ok=True)
            self._topics.chmod(0o700)  # one that stood there before need not be
        except OSError as error:
            raise InvalidDataPath(
                f"the broker's data folder cannot be made at {self.data_dir}: {error}; choose another"
            ) from error

    def command(self, java: Path, jars: Sequence[Path], port: int, controller_port: int, deadline: float) -> list[str]:
        """Write the settings, format the data if it is new, and return the command that runs the broker.

        `deadline` is a time of time.monotonic(). Raises BrokerStartFailed when Kafka refuses to format.
        """
        settings = server_properties(self._topics, port, controller_port, self.extra_properties, self.member)
        replace_text(self._settings_file, render(settings), encoding="ascii")
        java_command = [str(java), "-cp", _class_path(jars), *_QUICK]
        if not (self._topics / "meta.properties").exists():
            self._format(java_command, deadline)
        return [
            *java_command,
            "-Xmx256m",
            # A broker out of memory is to be seen dead, not half alive.
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
            f"-Dpenstock.broker.log={self.log_file}",
            "kafka.Kafka",
            str(self._settings_file),
        ]

    def said(self, since: float) -> str:
        """What the broker wrote at this start, `since` a time of time.time(); the last megabyte, should it be more."""
        parts = []
        for path in (self.stderr_file, self.log_file):
            try:
                # A broker that ends before it has a log leaves the one of the previous start in place.
                if path.stat().st_mtime >= since - 1:
                    parts.append(_end_of(path))
            except FileNotFoundError:
                continue
        return "".join(parts)

    def log_tail(self, since: float) -> str:
        """The last lines of said(), for an error message: of those that tell of trouble, if there are such.

        The reason of a failed start is followed by some hundred lines about the shutdown, and surrounded by stacks.
        """
        lines = self.said(since).splitlines()
        shown = [line for line in _troubles(lines) if not line.startswith("\tat ")] or lines
        return "\n".join([*shown[-_TAIL_LINES:], f"(the whole log: {self.log_file})"])

    def _format(self, java_command: Sequence[str], deadline: float) -> None:
        """Make the data folder one that Kafka accepts.

        The feature levels that Kafka's own tool writes depend on its version only: they are kept in the cache, and
        further folders start from a copy, which saves 0.6 s each. meta.properties makes a folder count as formatted,
        so it comes last.
        """
        seed = jar_cache() / _SEED
        plain = not self.format_arguments and (not self.extra_properties or self.member is not None)
        (self._topics / _SEED).unlink(missing_ok=True)  # left by a process that was killed here
        if plain and seed.exists():
            shutil.copyfile(seed, self._topics / _SEED)
            replace_text(
                self._topics / "meta.properties",
                f"version=1\ncluster.id={self._id_to_be}\nnode.id={self._node_id}\ndirectory.id={new_id()}\n",
            )
            return
        self._run_format_tool(java_command, deadline)
        if plain:
            copy = seed.with_name(f".{_SEED}-{os.getpid()}")
            shutil.copyfile(self._topics / _SEED, copy)
            copy.replace(seed)

    @property
    def _id_to_be(self) -> str:
        return new_id() if self.member is None else self.member.cluster_id

    @property
    def _node_id(self) -> int:
        return NODE_ID if self.member is None else self.member.node_id

    def _run_format_tool(self, java_command: Sequence[str], deadline: float) -> None:
        tool = [*java_command, "kafka.tools.StorageTool", "format", "--cluster-id", self._id_to_be]
        tool += ["--config", str(self._settings_file), *self.format_arguments]
        try:
            done = subprocess.run(
                tool,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=java_environment(),
                timeout=max(1.0, deadline - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerStartFailed(
                f"Kafka did not finish formatting {self._topics} in time: is the machine or its disk overloaded?"
            ) from error
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise BrokerStartFailed(
                f"Kafka did not format {self._topics}; correct the extra properties or format arguments "
                f"that it names. It said:\n{said}"
            )


def java_environment() -> dict[str, str]:
    """The environment for Kafka's JVM."""
    # In the C locale, Java on Linux cannot open a path that is not ASCII; and Kafka's messages are to be in English.
    return {**os.environ, "LC_ALL": "C.UTF-8"} if sys.platform == "linux" else dict(os.environ)


def _class_path(jars: Sequence[Path]) -> str:
    # Kafka logs through SLF4J, and none of its jars connects that to a log: without PySpark's there would be none.
    # They come first, as Kafka brings an older slf4j-api that they do not fit to.
    paths = [str(path) for path in (*map(pyspark_jar, _LOGGING_JARS), *jars)]
    unusable = next((path for path in paths if os.pathsep in path), None)
    if unusable is not None:
        raise JarsUnavailable(
            f"Java takes {os.pathsep!r} for the end of a path, and {unusable} has one: name another cache folder in "
            "XDG_CACHE_HOME, or install Python's packages elsewhere"
        )
    return os.pathsep.join(paths)


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _READ_BYTES_MAX))
        return file.read().decode(errors="replace")


def _troubles(lines: Sequence[str]) -> list[str]:
    """The lines of level WARN and above with the lines that belong to them, and those that are no log lines at all."""
    kept = []
    trouble = True
    for line in lines:
        level = _LOG_LINE.match(line)
        if level is not None:
            trouble = level[1] not in ("INFO", "DEBUG", "TRACE")
        if trouble:
            kept.append(line)
    return kept


def new_id() -> str:
    """An id as Kafka makes them: 16 random bytes in URL-safe base 64, never with a leading dash."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return made
