"""What a coordinator reads of stored states, and what it deletes of those that nobody names."""

from __future__ import annotations

from ..schemas.errors import StateError
from ..schemas.state import StateHandle, epoch_of_location
from ..transport.state_storage import StateStorage
from .protocol.effects import CollectOrphans


def load_state(storage: StateStorage, handle: StateHandle) -> bytes:
    """The bytes of a state. Raises StateError where they cannot be read back."""
    if handle.inline is not None:
        return handle.inline
    if handle.location is None:
        raise StateError("its handle names neither bytes nor a location")
    return storage.get(handle.location)


def collect_orphans(storage: StateStorage, effect: CollectOrphans) -> None:
    """Deletes every stored state of an older epoch that no checkpoint names."""
    if not storage.configured:
        return
    unnamed = [
        location
        for location in storage.list()
        if location not in effect.named and (epoch := epoch_of_location(location)) is not None and epoch < effect.epoch
    ]
    storage.delete(unnamed)
