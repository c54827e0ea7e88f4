"""Downloads pinned jars with the Ivy that PySpark ships, so that nothing but pip packages and Java has to be there."""

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from .errors import JarsUnavailable
from .java import find_java
from .pinned_jars import Pin

SETTINGS_VARIABLE = "PENSTOCK_IVY_SETTINGS"
"""Environment variable that names an Ivy settings file of the user's, for a mirror or a proxy."""

_POLL_S = 0.1
_SETTINGS = """<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers>
</ivysettings>
"""


def pyspark_jars() -> Path:
    """Return the folder of Spark's jars: of the PySpark package, or of SPARK_HOME where that lies in an archive there.

    Raises JarsUnavailable when PySpark is not installed.
    """
    # The package's place is enough; importing it would cost half a second.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsUnavailable("PySpark is not installed in this Python: run `pip install pyspark`, its jars are needed")
    package = Path(spec.origin).parent
    home = os.environ.get("SPARK_HOME")
    return Path(home, "jars") if home and not package.is_dir() else package / "jars"


def pyspark_jar(name: str) -> Path:
    """The jar of that artifact in PySpark's folder, whatever its version. Raises JarsUnavailable."""
    found = sorted(pyspark_jars().glob(f"{name}-[0-9]*.jar"))
    if not found:
        raise JarsUnavailable(
            f"there is no {name} jar in {pyspark_jars()}: the PySpark installation is incomplete, reinstall it"
        )
    return found[0]


def download(pins: Sequence[Pin], work: Path, deadline: float, on_bytes: Callable[[int, int], None]) -> None:
    """Put the pinned jars into `work`, not verified.

    `deadline` is a time of time.monotonic(); `on_bytes(jars, bytes)` is told every 0.1 s what has come so far.
    Raises JarsUnavailable with Ivy's own words.
    """
    ivy_cache = work / "ivy"
    command = _ivy_command(pins, work, ivy_cache)
    log_path = work / "ivy.log"
    with (
        log_path.open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            while process.poll() is None:
                if time.monotonic() >= deadline:
                    raise JarsUnavailable(
                        f"fetching jars took longer than allowed: is the network slow, or blocked? {_advice()}"
                    )
                on_bytes(*_arrived(ivy_cache))
                time.sleep(_POLL_S)
        finally:
            process.kill()
    missing = [pin.file_name for pin in pins if not (work / pin.file_name).exists()]
    if missing:
        said = log_path.read_text(errors="replace")[-2000:]
        raise JarsUnavailable(
            f"Ivy (exit code {process.returncode}) did not fetch {len(missing)} of {len(pins)} jars, "
            f"among them {missing[0]}: is there a network? {_advice()} Ivy said:\n{said}"
        )


def _advice() -> str:
    return f"Behind a proxy or a mirror, name an Ivy settings file in {SETTINGS_VARIABLE}."


def _ivy_command(pins: Sequence[Pin], work: Path, ivy_cache: Path) -> list[str]:
    settings = work / "settings.xml"
    settings.write_text(_SETTINGS)
    module = work / "ivy.xml"
    module.write_text(_module(pins))
    arguments = {
        "-settings": os.environ.get(SETTINGS_VARIABLE) or str(settings),
        "-cache": str(ivy_cache),
        "-ivy": str(module),
        "-confs": "default",
        "-retrieve": f"{work}/[artifact]-[revision].[ext]",
    }
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-jar", str(pyspark_jar("ivy"))]
    return command + [part for pair in arguments.items() for part in pair]


def _module(pins: Sequence[Pin]) -> str:
    """An Ivy module that needs exactly the pins: not transitive, so that Ivy reads no POM (40 s of them)."""
    wanted = "".join(
        f"    <dependency org={quoteattr(pin.group)} name={quoteattr(pin.artifact)} rev={quoteattr(pin.version)}"
        ' conf="default->default" transitive="false">'
        f'<artifact name={quoteattr(pin.artifact)} type="jar"/></dependency>\n'
        for pin in pins
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="penstock" module="broker"/>\n'
        f'  <configurations><conf name="default"/></configurations>\n  <dependencies>\n{wanted}  </dependencies>\n'
        "</ivy-module>\n"
    )


def _arrived(ivy_cache: Path) -> tuple[int, int]:
    """How many jars, and how many bytes, the files of a running Ivy hold."""
    jars = size = 0
    for path in ivy_cache.glob("*/*/jars/*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:  # Ivy renames a jar when it is complete
            continue
        jars += path.suffix == ".jar"
    return jars, size
