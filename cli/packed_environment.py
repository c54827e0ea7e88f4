"""What Spark's workers need beside Spark, as one archive: libraries in ``lib/``, and ``bin/python`` that finds them.

``bin/python`` is no interpreter but a script that starts the machine's own: an archive cannot bring one, and a virtual
environment whose interpreter is missing, or of another version, fails with an error that names neither.
"""

from __future__ import annotations

import compileall
import os
import platform
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .exits import UsageError

DISTRIBUTION = "penstock-spark"
SPARK_BRINGS = ("pyspark", "py4j")
INSTALL_TIMEOUT_S = 1800.0
CHECK_TIMEOUT_S = 120.0
_TAIL_LINES = 15

_LAUNCHER = """#!/bin/sh
# Starts a Python VERSION of this machine, with the libraries that were packed beside this script.
here=$(cd "$(dirname "$0")/.." && pwd)
first=INTERPRETER
fits='import os, sys; sys.exit(sys.version_info[:2] != (MAJOR, MINOR) or os.uname().machine != "MACHINE")'
for python in "$first" pythonVERSION python3; do
    if "$python" -S -c "$fits" 2>/dev/null; then
        export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$here/lib" PYTHONNOUSERSITE=1
        exec "$python" "$@"
    fi
done
echo "penstock: $(hostname) has no Python VERSION for MACHINE, neither $first nor on the PATH: install it there," \
    "or run penstock pack with a Python that the machines of the cluster have" >&2
exit 127
"""


@dataclass(frozen=True, slots=True)
class Packed:
    """Archive that has been written."""

    size: int
    """Bytes of the archive."""
    python: str
    machine: str
    interpreter: str
    """Where ``bin/python`` looks first."""
    took_s: float


def packed(modules: Sequence[str], requirements: Sequence[Path], output: Path, say: Callable[[str], None]) -> Packed:
    """Write the archive; it appears whole, or not at all. Raises UsageError for what cannot be packed, and why."""
    began = time.monotonic()
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise UsageError(
            f"{DISTRIBUTION} is not installed in {sys.executable}: install it, with pip, to pack it"
        ) from None
    sources = [_module(name) for name in modules]
    _require_files(requirements, output)
    with tempfile.TemporaryDirectory(prefix="penstock-pack-") as folder:
        root = Path(folder)
        library = root / "lib"
        library.mkdir()
        say("installing what Penstock and your code need")
        _install(requirements, library)
        for source in (*_own_sources(), *((source.name, source) for source in sources)):
            _copy(*source, library)
        _write_metadata(library)
        for name in SPARK_BRINGS:  # where a requirement has asked for it
            for left_out in library.glob(f"{name}*"):
                say(f"leaving out {left_out.name}: Spark brings its own")
                shutil.rmtree(left_out)
        shutil.rmtree(library / "bin", ignore_errors=True)  # commands, which name the Python that installed them
        compileall.compile_dir(
            library, quiet=2, force=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
        interpreter = _write_launcher(root / "bin" / "python")
        say("importing it as a worker of Spark does")
        _check(root, [source.stem for source in sources])
        say("writing the archive")
        size = _write(root, output)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Packed(size, python, platform.machine(), interpreter, time.monotonic() - began)


def _module(name: str) -> Path:
    path = Path(name).resolve()
    if not path.exists():
        raise UsageError(f"there is no module {name}: name a FILE.py or the folder of a package")
    if path.is_dir() and not any(path.glob("*.py")):
        raise UsageError(f"{name} is no package: there is no Python file in it")
    if not path.stem.isidentifier() or (path.is_file() and path.suffix != ".py"):
        raise UsageError(f"{name} cannot be imported: a module is a FILE.py or a folder, named by an identifier")
    if path.stem in ("penstock", *SPARK_BRINGS):
        raise UsageError(f"{name} would take the place of {path.stem}: give it another name")
    return path


def _require_files(requirements: Sequence[Path], output: Path) -> None:
    for path in requirements:
        if not path.is_file():
            raise UsageError(f"there is no requirements file {path}")
    if not output.name.endswith((".tar.gz", ".tgz")):
        raise UsageError(f"--output {output}: Spark unpacks it by its name, which must end in .tar.gz or .tgz")
    if output.is_dir() or not os.access(output.absolute().parent, os.W_OK | os.X_OK):
        raise UsageError(f"--output {output} cannot be written: name a file in a folder that you may write to")


# ---- libraries


def _install(requirements: Sequence[Path], library: Path) -> None:
    command = [*_installer(), "install", "--target", str(library), *_own_requirements()]
    for path in requirements:
        command += ["--requirement", str(path)]
    ran = _ran(command, INSTALL_TIMEOUT_S)
    if ran.returncode != 0:
        end = "\n".join(ran.stdout.strip().splitlines()[-_TAIL_LINES:])
        raise UsageError(f"what is to be packed cannot be installed ({' '.join(command[:4])} ...):\n{end}")


def _installer() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "--quiet", "--python", sys.executable]
    raise UsageError(f"{sys.executable} has no pip, and there is no uv on the PATH: one of them is needed to pack")


def _own_requirements() -> list[str]:
    """Return what Penstock needs but Spark does not bring, in the versions that are installed here."""
    names = []
    for requirement in metadata.requires(DISTRIBUTION) or ():
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        if "extra ==" not in requirement and name not in SPARK_BRINGS:
            names.append(f"{name}=={metadata.version(name)}")
    return names


# ---- sources


def _own_sources() -> list[tuple[str, Path]]:
    """Penstock's packages as they run here: below one folder where it is installed, several in a checkout."""
    package = Path(__file__).resolve().parent.parent
    declared = package / "pyproject.toml"
    if not declared.is_file():  # a checkout may be called penstock, too
        return [("penstock", package)]
    project = tomllib.loads(declared.read_text(encoding="utf-8"))
    folders: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    return [("penstock", package / "penstock"), *((name, package / folder) for name, folder in folders.items())]


def _copy(name: str, source: Path, library: Path) -> None:
    is_ours = name.partition(".")[0] == "penstock"
    target = library / (name.replace(".", "/") if is_ours else name)
    if target.exists() and not is_ours:
        raise UsageError(f"{source} and an installed package are both called {source.stem}: give it another name")
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def _write_metadata(library: Path) -> None:
    """So that versions can be asked for there, as of any installed package."""
    distribution = metadata.distribution(DISTRIBUTION)
    folder = library / f"{DISTRIBUTION.replace('-', '_')}-{distribution.version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(distribution.read_text("METADATA") or "", encoding="utf-8")


# ---- the interpreter


def _write_launcher(path: Path) -> str:
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    words = {
        "INTERPRETER": shlex.quote(interpreter),
        "VERSION": f"{sys.version_info.major}.{sys.version_info.minor}",
        "MAJOR": str(sys.version_info.major),
        "MINOR": str(sys.version_info.minor),
        "MACHINE": platform.machine(),
    }
    text = re.sub("|".join(words), lambda found: words[found[0]], _LAUNCHER)
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return interpreter


def _check(root: Path, modules: Sequence[str]) -> None:
    """Import it with nothing else on the path but Spark. Raises UsageError with what is missing."""
    there = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (there and there.origin and str(Path(there.origin).parent)) or ""
    archives = [str(path) for path in Path(home, "python", "lib").glob("*.zip")]
    if not archives:
        raise UsageError("neither SPARK_HOME nor an installed PySpark has python/lib/pyspark.zip: set SPARK_HOME")
    for module in ("penstock.spark_integration.task", *modules):
        _check_module(root, module, archives)


def _check_module(root: Path, module: str, archives: Sequence[str]) -> None:
    command = [str(root / "bin" / "python"), "-c", f"import {module}"]
    ran = _ran(command, CHECK_TIMEOUT_S, {**os.environ, "PYTHONPATH": os.pathsep.join(archives)}, root)
    if ran.returncode != 0:
        error = (ran.stdout.strip().splitlines() or ["no error"])[-1]
        raise UsageError(
            f"module {module} cannot be imported from what was packed: {error}. Name what it needs in a"
            " requirements file (-r), or as a further MODULE"
        )


def _ran(
    command: list[str], timeout_s: float, environment: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{' '.join(command[:4])} ... took longer than {timeout_s:g} s") from None


def _write(root: Path, output: Path) -> int:
    try:
        descriptor, partial = tempfile.mkstemp(dir=output.absolute().parent, prefix=f".{output.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
                    for name in ("bin", "lib"):
                        archive.add(root / name, arcname=name)
                os.fchmod(file.fileno(), 0o644)
            os.replace(partial, output)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        return output.stat().st_size
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error.strerror or error}") from error
