"""How many bytes an operator's events take, where: what ``send_event`` looks at before it takes another."""

from __future__ import annotations


class Load:
    """Bytes of one operator's events, by where they are."""

    __slots__ = ("appended", "held", "queued")

    def __init__(self) -> None:
        self.queued = 0
        """In the mailbox; changed under its lock."""
        self.appended = 0
        """Taken from there, and not yet certainly taken by the broker."""
        self.held = 0
        """By closed gateways, as far as that was noted."""

    @property
    def unsent(self) -> int:
        """Sent, not yet certainly taken by the broker, and not held."""
        return self.queued + self.appended
