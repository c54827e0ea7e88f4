"""What a coordinator reads of stored states, and what it deletes of those that nobody names."""

from __future__ import annotations

from ..schemas.errors import StateError
from ..schemas.state import StateHandle, epoch_of_location
from ..transport.state_storage import StateStorage
from .protocol.effects import CollectOrphans
from .state_owner import StateOwner, require_mark


def load_state(storage: StateStorage, handle: StateHandle) -> bytes:
    """The bytes of a state. Raises StateError where they cannot be read back as they were stored."""
    if handle.inline is not None:
        return handle.inline
    if handle.location is None:
        raise StateError("its handle names neither bytes nor a location")
    data = storage.get(handle.location)
    if (damage := handle.damage(data)) is not None:
        raise StateError(f"{handle.location!r} in {storage!r} is damaged: it {damage}")
    return data


def collect_orphans(storage: StateStorage, effect: CollectOrphans, owner: StateOwner | None) -> None:
    """Deletes every stored state of an older epoch that no checkpoint names, behind another look at whose folder it is:
    what this job does not name may be another's. Raises JobRefused."""
    if owner is None:  # it has no folder
        return
    require_mark(owner, storage)
    unnamed = [
        location
        for location in storage.list()
        if location not in effect.named and (epoch := epoch_of_location(location)) is not None and epoch < effect.epoch
    ]
    storage.delete(unnamed)
