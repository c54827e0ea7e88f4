"""What a coordinator deletes of stored states: those that nobody names."""

from __future__ import annotations

from ..schemas.state import epoch_of_location
from ..transport.state_storage import StateStorage
from .protocol.effects import CollectOrphans
from .state_owner import StateOwner, require_mark


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
