"""Jobs in processes of their own, over the session's broker or over one that may be killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker

from .children import Zygote
from .rig import Rig

MakeRig = Callable[..., Rig]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def make_rig(zygote: Zygote, request: pytest.FixtureRequest, tmp_path: Path) -> MakeRig:
    """Makes a job on the session's broker, or on ``bootstrap``; to be used as a context manager."""

    def make(bootstrap: str | None = None, **settings: Any) -> Rig:
        number = next(_numbers)
        folder = tmp_path / str(number)
        folder.mkdir()
        if bootstrap is None:
            shared: EmbeddedBroker = request.getfixturevalue("kafka_broker")
            bootstrap = shared.bootstrap
        return Rig(zygote, bootstrap, f"matrix-{number}", folder, **settings)

    return make
