"""The file that tells other terminals where the detached broker is."""

import json
from dataclasses import dataclass
from pathlib import Path

from .atomic import replace_text
from .processes import identity


@dataclass(frozen=True, slots=True)
class Registration:
    """A process that was started as the detached broker; it satisfies processes.Process."""

    bootstrap: str
    pid: int
    data_dir: Path
    process_identity: str

    def alive(self) -> bool:
        """Whether that very process still runs: another one under the same id does not count."""
        return identity(self.pid) == self.process_identity

    def write(self, path: Path) -> None:
        """Replace the file."""
        fields = {
            "bootstrap": self.bootstrap,
            "pid": self.pid,
            "data_dir": str(self.data_dir),
            "process_identity": self.process_identity,
        }
        replace_text(path, json.dumps(fields, indent=2) + "\n")


def read_registration(path: Path) -> Registration | None:
    """What the file says, whether that process lives or not; None when there is no file or it is not one of ours."""
    try:
        fields = json.loads(path.read_text())
        return Registration(
            bootstrap=str(fields["bootstrap"]),
            pid=int(fields["pid"]),
            data_dir=Path(fields["data_dir"]),
            process_identity=str(fields["process_identity"]),
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
