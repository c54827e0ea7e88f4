"""Finds a java command that Kafka can run on."""

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from .errors import JavaNotFound, JavaTooOld

OLDEST_JAVA = 17
_VERSION_TIMEOUT_S = 30.0
_HOW_TO_GET_IT = (
    f"Java {OLDEST_JAVA} or newer is needed to run Kafka (and Spark): install a JRE, for example the package "
    "openjdk-17-jre-headless on Debian and Ubuntu, java-17-openjdk-headless on Fedora, or openjdk@17 in Homebrew, "
    "and put it on the PATH or name its folder in JAVA_HOME"
)


def find_java() -> Path:
    """The java command of JAVA_HOME, else of the PATH, once it has shown to be new enough.

    Raises JavaNotFound when there is none or it does not work, JavaTooOld when it is older than Java 17.
    """
    java, named_by = _locate()
    version = _major_version(java, java.stat().st_mtime_ns)
    if version < OLDEST_JAVA:
        raise JavaTooOld(f"{java} (from {named_by}) is Java {version}, which is too old. {_HOW_TO_GET_IT}")
    return java


def _locate() -> tuple[Path, str]:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        # No silent fall back to the PATH: Spark takes JAVA_HOME at its word as well, and would fail later.
        if not os.access(java, os.X_OK) or not java.is_file():
            raise JavaNotFound(f"JAVA_HOME is {home}, but there is no command bin/java in it. {_HOW_TO_GET_IT}")
        return java, "JAVA_HOME"
    found = shutil.which("java")
    if found is None:
        raise JavaNotFound(f"JAVA_HOME is not set and there is no java command on the PATH. {_HOW_TO_GET_IT}")
    return Path(found), "the PATH"


@lru_cache(maxsize=8)
def _major_version(java: Path, modified_ns: int) -> int:
    """The feature release, such as 17; `modified_ns` makes a replaced command a new cache entry."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaNotFound(f"{java} -version did not run: {error}. {_HOW_TO_GET_IT}") from error
    said = (done.stderr + done.stdout).strip()
    # Up to Java 8 the release came second: 1.8.0_402.
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if done.returncode != 0 or version is None:
        raise JavaNotFound(
            f"{java} -version answered with exit code {done.returncode} and {said[:500]!r}. {_HOW_TO_GET_IT}"
        )
    return int(version[1])
