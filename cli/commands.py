"""The commands by name, each loaded when it is asked for: `penstock status` does not wait for what `run` needs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

COMMANDS = {
    "demo": "demo.command",
    "new": "new",
    "run": "run_job",
    "coordinator": "coordinator",
    "broker": "broker",
    "jobs": "jobs",
    "status": "status_commands",
    "checkpoints": "status_commands",
    "dashboard": "dashboard",
    "events": "events",
    "replay": "replay",
    "audit": "audit",
    "fork": "fork",
    "stop": "job_commands",
    "savepoint": "job_commands",
    "discard": "job_commands",
    "request": "job_commands",
    "purge": "job_commands",
    "pack": "pack",
    "plan": "plan",
    "compat": "compat",
    "doctor": "doctor",
}
"""Each command's module in this package; its function has the command's name, or its group is `app`."""


class OnDemand(Mapping[str, TyperCommand | TyperGroup]):
    """Every command by its name, loaded when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, TyperCommand | TyperGroup] = {}

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        if name not in self._loaded:
            self._loaded[name] = _load(name, COMMANDS[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Commands(TyperGroup):
    """The group of all commands, in the order of its help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = OnDemand()  # type: ignore[assignment]  # nothing is added to it

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


def _load(name: str, home: str) -> TyperCommand | TyperGroup:
    module = importlib.import_module(f".{home}", __package__)
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name)(getattr(module, name))
    command = get_command(app)
    assert isinstance(command, TyperCommand | TyperGroup)
    command.name = name
    return command
