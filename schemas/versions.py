"""Which versions of Penstock's protocol speak to each other (protocol, section 12).

A coordinator and a subtask speak the lower of their two versions. The newer side knows both, so it decides: what is
below its ``oldest`` it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Versions:
    """What one side speaks."""

    protocol: int
    """Its own version."""
    oldest: int
    """The lowest version that it still speaks."""
    release: str = ""
    """The release of Penstock, for people."""

    def spoken_with(self, other: int) -> int:
        """The version in which this side and one of version ``other`` speak."""
        return min(self.protocol, other)

    def refuses(self, other: int) -> bool:
        """Whether this side does not speak to one of that version, being the newer one of the two."""
        return other < self.oldest

    def told(self) -> str:
        return f"Penstock {self.release or 'of an unnamed release'} (protocol {self.protocol})"


RELEASE = "0.1.0"
CURRENT = Versions(protocol=1, oldest=1, release=RELEASE)
