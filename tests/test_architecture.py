"""The rules that keep the packages apart, held by walking every import of the source.

Each rule is a function from parsed modules to violations, and each is also fed a source that breaks it: a rule that
cannot fail holds nothing.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TOP = "penstock"
"""The folder of the public API; every other folder is a sub-package of it."""

MAY_IMPORT: dict[str, frozenset[str]] = {
    "schemas": frozenset(),
    "checkpoint_log": frozenset({"schemas"}),
    "transport": frozenset({"schemas"}),
    "client": frozenset({"schemas", "checkpoint_log", "transport"}),
    "coordinator": frozenset({"schemas", "checkpoint_log", "transport", "client"}),
    "subtask_client": frozenset({"schemas", "transport"}),
    "sinks": frozenset({"schemas", "subtask_client"}),
    "sources": frozenset({TOP}),
    "tables": frozenset({TOP}),
    "rules": frozenset({TOP}),
    "recorded": frozenset({TOP, "schemas", "checkpoint_log", "transport", "client", "coordinator", "subtask_client"}),
    "audit": frozenset({"schemas", "transport"}),
    TOP: frozenset(
        {
            *("schemas", "transport", "coordinator", "subtask_client", "sinks", "recorded", "audit"),
            *("broker", "spark_integration", "testing", "sources", "tables", "rules"),
        }
    ),
    "spark_integration": frozenset(
        {TOP, "schemas", "checkpoint_log", "transport", "client", "coordinator", "subtask_client", "sinks"}
    ),
    "dashboard": frozenset({"schemas", "transport", "client", "coordinator", "recorded"}),
    "broker": frozenset(),
    "testing": frozenset(
        {TOP, "schemas", "checkpoint_log", "transport", "client", "coordinator", "subtask_client", "broker"}
    ),
    "cli": frozenset(
        {
            *(TOP, "schemas", "checkpoint_log", "transport", "client", "coordinator", "subtask_client", "recorded"),
            *("audit", "spark_integration", "broker", "testing", "dashboard", "sources", "tables"),
        }
    ),
}
"""Folder to the other folders that it may import."""

ENTRY = "penstock/__main__.py"
"""Runs the command line, as `penstock` does."""

CORES = ("checkpoint_log", "coordinator/protocol", "subtask_client/protocol")

USE_A_CORE = frozenset({("recorded", "subtask_client")})
"""Folders that run another folder's core: a replay runs the subtask's."""

NOT_IN_A_CORE = {
    *("time", "datetime", "sched", "random", "secrets", "uuid"),
    *("threading", "asyncio", "concurrent", "queue", "multiprocessing", "subprocess", "signal"),
    *("os", "io", "pathlib", "tempfile", "socket", "ssl", "select", "selectors", "logging"),
}
"""Clocks, chance, threads and everything outside the process."""

OWNERS: dict[str, tuple[str, ...]] = {
    "confluent_kafka": ("transport/", "sources/kafka", "rules/topic_source.py"),
    "fastavro": ("schemas/",),
    "pyspark": ("spark_integration/",),
    "py4j": ("spark_integration/",),
    "fsspec": ("transport/state_storage.py", "sources/files", "rules/file_source.py"),
    "pydantic": ("rules/rule_sets.py",),
    "deltalake": ("tables/",),
    "pyiceberg": ("tables/",),
    "starlette": ("dashboard/",),
    "uvicorn": ("dashboard/",),
}
"""Third-party package to the only places that may import it: a folder, or how files in one begin."""

NOTHING_EXECUTED_IN = ("schemas", "transport", "coordinator", "subtask_client")
EXECUTES = frozenset({"pickle", "marshal", "shelve", "cloudpickle", "dill", "joblib"})

LINES_MAX = 500


@dataclass(frozen=True)
class Import:
    """One imported module: its full name, and how many leading dots the statement had."""

    line: int
    name: str
    level: int


@dataclass(frozen=True)
class Module:
    """One source file of the package, by its path from the repository's root."""

    path: str
    source: str

    @property
    def folder(self) -> str:
        return self.path.split("/")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def package(self) -> list[str]:
        """The package that relative imports begin from."""
        folders = self.path.split("/")[:-1]
        return folders if folders[0] == TOP else [TOP, *folders]

    @cached_property
    def imports(self) -> list[Import]:
        """Every import in the file, also those inside functions and under TYPE_CHECKING."""
        return [found for node in ast.walk(self.tree) for found in self._imports_of(node)]

    def _imports_of(self, node: ast.AST) -> Iterator[Import]:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(node.lineno, alias.name, 0)
            case ast.ImportFrom(module=module, names=names, level=level):
                begin = self.package[: len(self.package) + 1 - level] if level else []
                for alias in names:
                    yield Import(node.lineno, ".".join([*begin, *filter(None, [module]), alias.name]), level)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(node.lineno, name, 0)

    def at(self, line: int) -> str:
        return f"{self.path}:{line}"


Rule = Callable[[list[Module]], list[str]]


@cache
def all_modules() -> list[Module]:
    return [
        Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for folder in MAY_IMPORT
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def folder_of(name: str) -> str | None:
    """The folder that holds a module of ours, or None for a module of somebody else's."""
    parts = name.split(".")
    if parts[0] != TOP:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else TOP


def direction_violations(modules: list[Module]) -> list[str]:
    return [
        f"{module.at(found.line)}: {module.folder} must not import {target} ({found.name})"
        for module in modules
        for found in module.imports
        if (target := folder_of(found.name)) not in (None, module.folder)
        and target not in MAY_IMPORT[module.folder]
        and (module.path, target) != (ENTRY, "cli")
    ]


def core_user_violations(modules: list[Module]) -> list[str]:
    return [
        f"{module.at(found.line)}: a protocol core is its own folder's alone ({found.name})"
        for module in modules
        for found in module.imports
        if "protocol" in found.name.split(".")
        and (target := folder_of(found.name)) not in (None, module.folder)
        and (module.folder, target) not in USE_A_CORE
    ]


def name_violations(modules: list[Module]) -> list[str]:
    names: dict[tuple[str, str], list[str]] = {}
    for module in modules:
        if (name := module.path.rpartition("/")[2]) != "__init__.py":
            names.setdefault((module.folder, name), []).append(module.path)
    return [
        f"{paths[1]}: another file of its folder has this name ({paths[0]})" for paths in names.values() if paths[1:]
    ]


def circle_violations(modules: list[Module]) -> list[str]:
    """Modules that import each other, also through others, and also for their types alone."""
    names = {module_name(module): module for module in modules}
    imported = {
        name: {ours for found in module.imports if (ours := _module_of(found.name, names)) is not None and ours != name}
        for name, module in names.items()
    }
    violations = []
    for name, module in names.items():
        reached, due = set[str](), list(imported[name])
        while due:
            if (one := due.pop()) not in reached:
                reached.add(one)
                due += imported[one]
        if name in reached:
            violations.append(f"{module.at(1)}: imports itself through {', '.join(sorted(reached))}")
    return violations


def module_name(module: Module) -> str:
    return ".".join([*module.package, Path(module.path).stem])


def _module_of(name: str, names: Mapping[str, Module]) -> str | None:
    """Which of these modules an import of ``name`` (a module, or something in one) is of."""
    return next((one for one in (name, name.rpartition(".")[0]) if one in names), None)


def core_import_violations(modules: list[Module]) -> list[str]:
    violations = []
    for module, core in _in_cores(modules):
        own = f"{TOP}.{core.replace('/', '.')}"
        for found in module.imports:
            ours = folder_of(found.name)
            if ours is None:
                allowed = found.name.split(".")[0] in sys.stdlib_module_names
            else:
                allowed = ours in ("schemas", "checkpoint_log") or f"{found.name}.".startswith(f"{own}.")
            if not allowed:
                violations.append(
                    f"{module.at(found.line)}: a protocol core imports schemas, checkpoint_log, itself and the standard"
                    f" library only, not {found.name}"
                )
    return violations


def core_purity_violations(modules: list[Module]) -> list[str]:
    violations = []
    for module, _ in _in_cores(modules):
        violations += [
            f"{module.at(found.line)}: a protocol core must not import {found.name}: time comes in as an argument,"
            " effects go out as data"
            for found in module.imports
            if found.name.split(".")[0] in NOT_IN_A_CORE
        ]
        violations += [
            f"{module.at(found.line)}: a protocol core must not take or keep functions ({found.name}): what follows"
            " something is a plain value"
            for found in module.imports
            if found.name.split(".")[-1] in ("Callable", "Coroutine", "partial")
        ]
        violations += [
            f"{module.at(line)}: a protocol core must not call {name}()"
            for line, name in _called_names(module)
            if name in ("open", "print", "input")
        ]
    return violations


def owner_violations(modules: list[Module]) -> list[str]:
    return [
        f"{module.at(found.line)}: only {' and '.join(owners)} import {package}"
        for module in modules
        for found in module.imports
        for package, owners in OWNERS.items()
        if found.name.split(".")[0] == package and not module.path.startswith(owners)
    ]


def absolute_import_violations(modules: list[Module]) -> list[str]:
    return [
        f"{module.at(found.line)}: import {found.name} relatively"
        for module in modules
        for found in module.imports
        if found.level == 0 and found.name.split(".")[0] in MAY_IMPORT
    ]


def guard_violations(modules: list[Module]) -> list[str]:
    """Packages whose ``__init__`` does not refuse another name, before it imports anything of its own."""
    violations = []
    with_code = {m.path.rsplit("/", 1)[0] for m in modules if not m.path.endswith("__init__.py")}
    with_code |= MAY_IMPORT.keys()
    for module in modules:
        folder, _, file = module.path.rpartition("/")
        if file != "__init__.py" or folder == TOP or folder not in with_code:
            continue
        name = f"{TOP}.{folder.replace('/', '.')}"
        guard = next((n.lineno for n in module.tree.body if isinstance(n, ast.If) and _guards(n, name)), None)
        first = min((found.line for found in module.imports if found.level), default=None)
        if guard is None:
            violations.append(f'{module.at(1)}: lacks the guard `if __name__ != "{name}": raise ImportError(...)`')
        elif first is not None and first < guard:
            violations.append(f"{module.at(first)}: imports of our own stand before the guard of line {guard}")
    return violations


def docstring_violations(modules: list[Module]) -> list[str]:
    return [f"{m.at(1)}: has no module docstring" for m in modules if not ast.get_docstring(m.tree)]


def length_violations(modules: list[Module]) -> list[str]:
    return [
        f"{m.at(count)}: has {count} lines, at most {LINES_MAX}: which concept could have a file of its own?"
        for m in modules
        if (count := len(m.source.splitlines())) > LINES_MAX
    ]


def execution_violations(modules: list[Module]) -> list[str]:
    violations = []
    for module in modules:
        if module.folder in NOTHING_EXECUTED_IN:
            violations += [
                f"{module.at(found.line)}: {found.name} may run what it reads; nothing from a topic may run code"
                for found in module.imports
                if found.name.split(".")[0] in EXECUTES
            ]
            violations += [
                f"{module.at(line)}: {name}() runs what it is given; nothing from a topic may run code"
                for line, name in _called_names(module)
                if name in ("eval", "exec", "compile")
            ]
    return violations


def _in_cores(modules: list[Module]) -> Iterator[tuple[Module, str]]:
    return ((module, core) for module in modules for core in CORES if module.path.startswith(core + "/"))


def _called_names(module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id


def _guards(node: ast.If, name: str) -> bool:
    raises = node.body[0]
    return (
        ast.unparse(node.test) == f"__name__ != {name!r}"
        and isinstance(raises, ast.Raise)
        and raises.exc is not None
        and ast.unparse(raises.exc).startswith("ImportError(")
    )


def report(rule: Rule) -> None:
    violations = rule(all_modules())
    assert not violations, "\n" + "\n".join(violations)


def test_folders_import_only_in_the_allowed_direction() -> None:
    report(direction_violations)


def test_a_protocol_core_is_imported_by_its_own_folder_alone() -> None:
    report(core_user_violations)


def test_no_two_files_of_a_folder_have_one_name() -> None:
    report(name_violations)
    assert name_violations([Module("cli/look.py", ""), Module("cli/demo/look.py", ""), Module("audit/look.py", "")])


def test_protocol_cores_import_schemas_and_themselves_only() -> None:
    report(core_import_violations)


def test_protocol_cores_know_no_clock_chance_thread_or_io() -> None:
    report(core_purity_violations)


def test_no_modules_import_each_other() -> None:
    report(circle_violations)


def test_a_circle_is_found_also_through_others() -> None:
    circle = {"a": "from . import b", "b": "from .c import C", "c": "from ..schemas import ids\nfrom .a import A"}
    modules = [Module(f"transport/{name}.py", source) for name, source in circle.items()]
    assert len(circle_violations([*modules, Module("transport/d.py", "from .a import A")])) == 3
    assert not circle_violations(modules[1:])


def test_each_third_party_client_is_known_to_one_folder_only() -> None:
    report(owner_violations)


def test_the_packages_import_one_another_relatively() -> None:
    report(absolute_import_violations)


def test_each_package_refuses_to_be_imported_under_another_name_before_it_imports_anything() -> None:
    report(guard_violations)


def test_every_module_has_a_docstring() -> None:
    report(docstring_violations)


def test_no_module_grows_beyond_a_few_screens() -> None:
    report(length_violations)


def test_nothing_that_is_read_from_a_topic_can_run_code() -> None:
    report(execution_violations)


def test_the_walk_sees_every_folder() -> None:
    seen = {module.folder for module in all_modules()}
    assert seen == set(MAY_IMPORT)
    assert {core for _, core in _in_cores(all_modules())} == set(CORES)


def test_the_walk_covers_every_package_that_is_installed() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {name.split(".")[1] if "." in name else name for name in setuptools["packages"]} == set(MAY_IMPORT)
    on_disk = {m.path.rsplit("/", 1)[0] for m in all_modules()}
    installed = {
        name if name == TOP else name.removeprefix(f"{TOP}.").replace(".", "/") for name in setuptools["packages"]
    }
    assert on_disk == installed, "a package that pyproject.toml does not list would be missing from the wheel"


_IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
        print(f"{name}: imported")
    except ImportError as error:
        print(f"{name}: {error}")
"""


def test_the_same_code_under_another_name_is_an_error_that_says_the_right_one() -> None:
    folders = sorted(MAY_IMPORT.keys() - {TOP})
    names = [*folders, *(core.replace("/", ".") for core in CORES)]
    ran = subprocess.run(
        [sys.executable, "-I", "-c", _IMPORT_ALL, str(ROOT), *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = [f"{n}: import this package as penstock.{n.split('.')[0]}, not as {n.split('.')[0]}" for n in names]
    assert ran.stdout.splitlines() == expected, ran.stderr


LONG = '"""Long."""\n' + "x = 1\n" * LINES_MAX

BROKEN = [
    (direction_violations, "schemas/bad.py", "from ..transport import ports", 1),
    (direction_violations, "transport/bad.py", "def f():\n    from .. import coordinator", 2),
    (direction_violations, "coordinator/bad.py", "from ..subtask_client.api import Subtask", 1),
    (direction_violations, "subtask_client/protocol/bad.py", "from ...coordinator.protocol import core", 1),
    (direction_violations, "coordinator/bad.py", "from .. import Job", 1),
    (direction_violations, "coordinator/bad.py", "import penstock.cli", 1),
    (direction_violations, "broker/bad.py", "from ..schemas.errors import PenstockError", 1),
    (direction_violations, "testing/bad.py", "from ..cli import main", 1),
    (direction_violations, "penstock/bad.py", "from .cli import main", 1),
    (direction_violations, "schemas/bad.py", "import importlib\nimportlib.import_module('penstock.cli')", 2),
    (core_user_violations, "penstock/bad.py", "from .coordinator.protocol.core import Core", 1),
    (core_user_violations, "cli/bad.py", "from ..coordinator.protocol import core", 1),
    (core_import_violations, "coordinator/protocol/bad.py", "from ..api import Coordinator", 1),
    (core_import_violations, "coordinator/protocol/bad.py", "from ...transport.ports import Reader", 1),
    (core_import_violations, "subtask_client/protocol/bad.py", "import tenacity", 1),
    (core_purity_violations, "coordinator/protocol/bad.py", "x = 1\nfrom time import monotonic", 2),
    (core_purity_violations, "subtask_client/protocol/bad.py", "import concurrent.futures", 1),
    (core_purity_violations, "subtask_client/protocol/bad.py", "def f():\n    import os.path", 2),
    (core_purity_violations, "subtask_client/protocol/bad.py", "open('x')", 1),
    (core_purity_violations, "coordinator/protocol/bad.py", "from collections.abc import Callable", 1),
    (owner_violations, "coordinator/bad.py", "from confluent_kafka import Producer", 1),
    (owner_violations, "transport/bad.py", "import fastavro.schema", 1),
    (owner_violations, "broker/bad.py", "import pyspark", 1),
    (owner_violations, "transport/kafka.py", "import fsspec", 1),
    (absolute_import_violations, "cli/bad.py", "from penstock.schemas import acks", 1),
    (absolute_import_violations, "cli/bad.py", "import schemas", 1),
    (guard_violations, "schemas/__init__.py", "x = 1", 1),
    (guard_violations, "schemas/__init__.py", "if __name__ != 'penstock.schema':\n    raise ImportError('x')", 1),
    (
        guard_violations,
        "schemas/__init__.py",
        "from . import acks\nif __name__ != 'penstock.schemas':\n    raise ImportError('x')",
        1,
    ),
    (docstring_violations, "schemas/bad.py", "x = 1", 1),
    (docstring_violations, "schemas/bad.py", "", 1),
    (length_violations, "schemas/bad.py", LONG, LINES_MAX + 1),
    (execution_violations, "schemas/bad.py", "x = 1\nimport pickle", 2),
    (execution_violations, "transport/bad.py", "from marshal import loads", 1),
    (execution_violations, "coordinator/bad.py", "eval('1')", 1),
    (execution_violations, "subtask_client/bad.py", "def f():\n    exec('1')", 2),
]


@pytest.mark.parametrize(("rule", "path", "source", "line"), BROKEN)
def test_a_source_that_breaks_a_rule_is_caught_with_file_and_line(
    rule: Rule, path: str, source: str, line: int
) -> None:
    violations = rule([Module(path, source)])
    assert len(violations) == 1
    assert violations[0].startswith(f"{path}:{line}: ")


def test_what_the_rules_allow_is_not_caught() -> None:
    good = [
        Module(
            "coordinator/protocol/good.py",
            '"""Good."""\nimport heapq\nfrom ...schemas.acks import Hello\nfrom . import core\nfrom .state import x',
        ),
        Module("broker/good.py", '"""Good."""\nfrom importlib.util import find_spec\nfind_spec("pyspark")'),
        Module("cli/good.py", '"""Good."""\nfrom .. import Job\nfrom ..spark_integration import run'),
        Module("transport/state_storage.py", '"""Good."""\nimport fsspec\nimport re\nre.compile("x")'),
        Module(
            "transport/__init__.py",
            '"""Good."""\nif __name__ != "penstock.transport":\n    raise ImportError("x")\nfrom .ports import Log',
        ),
    ]
    rules = {rule for rule, *_ in BROKEN}
    assert [violation for rule in rules for violation in rule(good)] == []
