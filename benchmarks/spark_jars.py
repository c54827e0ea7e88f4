"""Jars that the PySpark package lacks: pinned, fetched once into the user's cache."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.broker.folders import cache_folder
from penstock.broker.ivy import download
from penstock.broker.pinned_jars import Pin

FETCH_S = 300.0


def cached_jars(folder: str, pins: Sequence[Pin]) -> list[Path]:
    """Return the paths of the jars, fetched where ``folder`` of the cache lacks them.

    Raises JarsUnavailable, or OSError.
    """
    cache = cache_folder() / folder
    missing = [pin for pin in pins if not pin.matches(cache / pin.file_name)]
    if missing:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as fetched:
            download(missing, Path(fetched), time.monotonic() + FETCH_S, lambda jars, size: None)
            for pin in missing:
                if not pin.matches(Path(fetched) / pin.file_name):
                    raise OSError(f"{pin.file_name} was fetched, but not with the pinned SHA-256")
                (Path(fetched) / pin.file_name).replace(cache / pin.file_name)
    return [cache / pin.file_name for pin in pins]
