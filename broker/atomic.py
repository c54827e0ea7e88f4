"""Files that change as a whole."""

import os
import tempfile
from pathlib import Path


def replace_text(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a file, readable by its owner only, so that a reader sees the old text or the new one, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding=encoding) as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
