"""Builds the images of docs/containers.md in the local engine: `make images`, or `python docker/build.py [NAME ...]`.

Nothing is built twice: every image carries a label with the hash of what it was made from. All that comes from a
network comes through the host's own tools (pip, Ivy, apt), as they are configured; only Debian's packages are installed
inside, by the base image's apt.

PENSTOCK_BASE_IMAGE names the image to stand on. Without it that is debian:bookworm-slim, or, where no registry can be
reached and this is root on a machine with debootstrap, a Debian made here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.broker import BrokerError, kafka_jars
from penstock.broker.folders import cache_folder
from penstock.broker.ivy import pyspark_jar
from penstock.broker.locks import file_lock
from penstock.broker.pinned_jars import KAFKA_VERSION

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION: str = PROJECT["project"]["version"]

KAFKA = f"penstock/kafka:{KAFKA_VERSION}"
COORDINATOR = f"penstock/coordinator:{VERSION}"
SPARK = f"penstock/spark:{VERSION}"
IMAGES = {"kafka": KAFKA, "coordinator": COORDINATOR, "spark": SPARK}

BASE_VARIABLE = "PENSTOCK_BASE_IMAGE"
PUBLIC_BASE = "debian:bookworm-slim"
LOCAL_BASE = "penstock/debian:bookworm"
SUITE = "bookworm"
LABEL = "penstock.made-from"
UNREAD = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale")
"""What nobody reads in a container."""

SPARK_ONLY = "pyspark"
"""What only the Spark side needs: the coordinator's image does without its 500 MB, and without Java."""
LOGGING_JARS = ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
"""Kafka logs through SLF4J, and its own jars have nothing behind that: PySpark's have."""

STEP_TIMEOUT_S = 900.0
PULL_TIMEOUT_S = 180.0
TAIL_LINES = 40


class CannotBuild(Exception):
    """Why there is no image, and what to do about it."""


@dataclass(frozen=True)
class Recipe:
    """One image: a Dockerfile (and a target in it) on a base, with what ``fill`` puts into its build context."""

    tag: str
    dockerfile: str
    base: str
    inputs: Sequence[str | Path]
    """What else it is made from: texts, and files or folders of the repository."""
    fill: Callable[[Path], None] = lambda context: None
    target: str = ""


def build(names: Sequence[str] = tuple(IMAGES), say: Callable[[str], None] = print) -> list[str]:
    """Builds the images of these names (kafka, coordinator, spark) where they are not there yet; returns their tags.

    Raises CannotBuild. Another process that builds is waited for.
    """
    if unknown := set(names) - IMAGES.keys():
        raise CannotBuild(f"there is no image {', '.join(sorted(unknown))}; there are: {', '.join(IMAGES)}")
    require_engine()

    def waiting() -> None:
        say("another process is building images; waiting for it")

    with file_lock(cache_folder() / "images.lock", STEP_TIMEOUT_S, waiting):
        python = f"penstock/python:{SUITE}"
        made(Recipe(python, "system", base_image(say), [], target="python"), say)
        if {"kafka", "spark"} & set(names):
            java = f"penstock/java:{SUITE}"
            made(Recipe(java, "system", python, [], target="java"), say)
        for name in names:
            match name:
                case "kafka":
                    made(kafka(java), say)
                case "coordinator":
                    made(libraries("coordinator", python, spark=False), say)
                    made(penstock("coordinator"), say)
                case "spark":
                    made(libraries("spark", java, spark=True), say)
                    made(penstock("spark"), say)
        docker("image", "prune", "--force", "--filter", f"label={LABEL}")  # what this build has replaced
    return [IMAGES[name] for name in names]


# ---- the images


def kafka(base: str) -> Recipe:
    def fill(context: Path) -> None:
        shutil.copytree(HERE / "kafka", context / "kafka")
        (context / "libs").mkdir()
        for jar in kafka_jars():
            shutil.copy(jar, context / "libs" / jar.name)
        for name in LOGGING_JARS:  # where Kafka brings an older slf4j-api, that must not be found first
            for older in (context / "libs").glob(f"{name}-[0-9]*.jar"):
                older.unlink()
            shutil.copy(pyspark_jar(name), context / "libs")

    return Recipe(KAFKA, "kafka", base, [HERE / "kafka", ROOT / "broker" / f"kafka-{KAFKA_VERSION}.jars"], fill)


def libraries(name: str, base: str, *, spark: bool) -> Recipe:
    wanted: list[str] = PROJECT["project"]["dependencies"]
    needs = [need for need in wanted if spark or not need.startswith(SPARK_ONLY)]
    return Recipe(
        f"penstock/{name}-libraries:{VERSION}", "libraries", base, needs, lambda context: wheels(context, base, needs)
    )


def penstock(name: str) -> Recipe:
    folders = sorted({*PROJECT["tool"]["setuptools"]["package-dir"].values(), "penstock"})
    sources = [ROOT / folder for folder in folders] + [ROOT / "pyproject.toml", ROOT / "README.md"]

    def fill(context: Path) -> None:
        with scratch() as copy:  # setuptools leaves a build folder where it builds, and takes up what it finds there
            for source in sources:
                target = copy / source.name
                if source.is_dir():
                    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, target)
            pip("wheel", "--no-deps", "--wheel-dir", context / "own", copy)

    base = f"penstock/{name}-libraries:{VERSION}"
    return Recipe(IMAGES[name], "penstock", base, sources, fill, target=name)


def wheels(context: Path, base: str, needs: Sequence[str]) -> None:
    """Fetches wheels that fit the base image's Python and machine, whatever the host's are."""
    look = "import platform, sys; print(*sys.version_info[:2], platform.machine(), platform.libc_ver()[1])"
    major, minor, machine, libc = docker("run", "--rm", base, "python3", "-c", look).split()
    newest = int(libc.split(".")[1])
    manylinux = [f"manylinux_2_{n}_{machine}" for n in range(17, newest + 1)] + [f"manylinux2014_{machine}"]
    folder = context / "wheels"
    pure = [need for need in needs if need.startswith(SPARK_ONLY)]  # the one package that has no wheel in the index
    if pure:
        pip("wheel", "--no-deps", "--wheel-dir", folder, *pure)
    for target, what in ((folder, needs), (context / "pip", ["pip"])):
        pip(
            "download", "--only-binary=:all:", "--implementation=cp", f"--python-version={major}.{minor}",
            *(f"--platform={platform}" for platform in manylinux), f"--find-links={folder}", "--dest", target, *what,
        )  # fmt: skip
    next((context / "pip").glob("pip-*.whl")).rename(context / "pip" / "pip.whl")


# ---- the base


def base_image(say: Callable[[str], None]) -> str:
    """The image everything stands on, which is in the engine then."""
    named = os.environ.get(BASE_VARIABLE)
    if named:
        if not exists(named):
            say(f"pulling {named}")
            docker("pull", "--quiet", named, advice=f"{BASE_VARIABLE} names an image that the engine cannot get")
        return named
    for there in (LOCAL_BASE, PUBLIC_BASE):
        if exists(there):
            return there
    try:
        say(f"pulling {PUBLIC_BASE}")
        docker("pull", "--quiet", PUBLIC_BASE, timeout_s=PULL_TIMEOUT_S)
        return PUBLIC_BASE
    except CannotBuild as error:
        pulling = str(error).strip().splitlines()[-1]
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise CannotBuild(
            f"{PUBLIC_BASE} cannot be pulled ({pulling}). Either name an image that the engine can get (Debian or"
            f" Ubuntu with Python 3.11 or newer) in {BASE_VARIABLE}, or install debootstrap and run this as root: then"
            " a Debian is made here from its packages"
        )
    say(f"no registry can be reached: making {LOCAL_BASE} from Debian's packages")
    bootstrap()
    return LOCAL_BASE


def bootstrap() -> None:
    with scratch() as root:
        settings = root / "etc/dpkg/dpkg.cfg.d"  # also for what is installed in the image later
        settings.mkdir(parents=True)
        (settings / "image").write_text(
            "force-unsafe-io\npath-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\n"
        )
        run(["debootstrap", "--variant=minbase", SUITE, root, *debian_mirror()], STEP_TIMEOUT_S)
        left_out = (*(f".{path}/*" for path in UNREAD), "./var/cache/apt/archives/*.deb", "./var/lib/apt/lists/*",
                    "./var/log/*", "./proc/*", "./sys/*")  # fmt: skip
        tar = ["tar", "-C", str(root), *(f"--exclude={path}" for path in left_out), "-c", "."]
        with subprocess.Popen(tar, stdout=subprocess.PIPE) as packed:
            run(["docker", "import", "-", LOCAL_BASE], STEP_TIMEOUT_S, stdin=packed.stdout)
        if packed.returncode != 0:
            raise CannotBuild(f"packing {LOCAL_BASE} failed: tar ended with {packed.returncode}")


def debian_mirror() -> list[str]:
    """Where this machine gets that suite from, if it does; else debootstrap knows one."""
    look = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {SUITE}", "Component: main"]
    try:
        found = run(look, 30.0).split()
    except CannotBuild:
        return []
    return [uri for uri in found if uri.startswith("http")][:1]


# ---- how an image is made


def made(recipe: Recipe, say: Callable[[str], None]) -> None:
    """The image is there afterwards, made from what the recipe names now."""
    begun = time.monotonic()
    key = key_of(recipe)
    if label(recipe.tag) == key:
        say(f"{recipe.tag} is up to date")
        return
    say(f"building {recipe.tag}")
    with scratch() as context:
        recipe.fill(context)
        target = ["--target", recipe.target] if recipe.target else []
        passed = [name for name in ("http_proxy", "https_proxy", "no_proxy") if name in os.environ]
        docker(
            "build", "--tag", recipe.tag, "--label", f"{LABEL}={key}", *target, "--build-arg", f"BASE={recipe.base}",
            *(part for name in passed for part in ("--build-arg", name)),
            "--file", str(HERE / f"{recipe.dockerfile}.Dockerfile"), str(context),
        )  # fmt: skip
    say(f"built {recipe.tag} in {time.monotonic() - begun:.0f} s")


def key_of(recipe: Recipe) -> str:
    """The hash of everything the image is made from."""
    hashed = hashlib.sha256()

    def add(*parts: str | bytes) -> None:
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            hashed.update(len(data).to_bytes(8, "big") + data)

    base = docker("image", "inspect", "--format", "{{.Id}}", recipe.base)
    add(Path(__file__).read_bytes(), recipe.target, base)
    for given in (HERE / f"{recipe.dockerfile}.Dockerfile", *recipe.inputs):
        if isinstance(given, str):
            add(given)
            continue
        files = [given] if given.is_file() else sorted(path for path in given.rglob("*") if path.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                add(str(file.relative_to(ROOT)), file.read_bytes(), f"{file.stat().st_mode & 0o111:o}")
    return hashed.hexdigest()


def exists(tag: str) -> bool:
    return bool(docker("image", "ls", "--quiet", tag).strip())


def label(tag: str) -> str:
    if not exists(tag):
        return ""
    return docker("image", "inspect", "--format", f'{{{{index .Config.Labels "{LABEL}"}}}}', tag).strip()


@contextmanager
def scratch() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="penstock-image-", dir=os.environ.get("TMPDIR", "/var/tmp"))  # /tmp may be memory
    try:
        yield Path(folder)
    finally:  # never into what may be mounted in there, as an interrupted debootstrap leaves it
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False)


# ---- commands


def require_engine() -> None:
    if shutil.which("docker") is None:
        raise CannotBuild("there is no docker command: install Docker (docker.io on Debian and Ubuntu)")
    docker(
        "info", "--format", "{{.ServerVersion}}", timeout_s=60.0,
        advice="no container engine answers: start it (systemctl start docker, or dockerd as root), or name it in"
        " DOCKER_HOST",
    )  # fmt: skip


def docker(*arguments: str, timeout_s: float = STEP_TIMEOUT_S, advice: str = "") -> str:
    return run(["docker", *arguments], timeout_s, advice=advice)


def pip(*arguments: str | Path) -> None:
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments], STEP_TIMEOUT_S)


def run(command: Sequence[str | Path], timeout_s: float, *, stdin: object = None, advice: str = "") -> str:
    """What the command wrote to stdout. Raises CannotBuild with the end of all it wrote."""
    name = " ".join(map(str, command[:3]))
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            done = subprocess.run(
                [*map(str, command)],
                stdin=subprocess.DEVNULL if stdin is None else stdin,  # type: ignore[call-overload]
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise CannotBuild(f"{name} ... took longer than {late.timeout:g} s: is the network slow?") from None
        except OSError as error:
            raise CannotBuild(f"{name} ... cannot be run: {error}") from None
        if done.returncode != 0:
            said.seek(0)
            tail = "\n".join([*done.stdout.splitlines(), *said.read().splitlines()][-TAIL_LINES:])
            begin = f"{advice}. " if advice else ""
            raise CannotBuild(f"{begin}{name} ... ended with {done.returncode}:\n{tail}")
        return str(done.stdout)


def main() -> int:
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"[images {time.monotonic() - begun:4.0f} s] {text}", flush=True)

    try:
        say(f"there are {', '.join(build(sys.argv[1:] or tuple(IMAGES), say))}")
    except (CannotBuild, BrokerError) as error:
        print(f"docker/build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
