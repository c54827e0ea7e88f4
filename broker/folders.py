"""Where the user's cache and data live, by the XDG rules (on macOS too: one rule to remember)."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`."""
    return _folder("XDG_CACHE_HOME", ".cache")


def data_folder() -> Path:
    """`$XDG_DATA_HOME/penstock`, or `~/.local/share/penstock`."""
    return _folder("XDG_DATA_HOME", ".local/share")


def _folder(variable: str, default: str) -> Path:
    named = Path(os.environ.get(variable, ""))
    # The XDG rules say that a relative path is to be ignored; it would mean another folder for every working directory.
    return (named if named.is_absolute() else Path.home() / default) / "penstock"
