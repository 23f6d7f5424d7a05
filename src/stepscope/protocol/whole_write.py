"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """A reader never meets half of it, nor a second writer's. OSError where there is no room, or it
    may not be."""
    if path.exists() and not path.is_file() and not path.is_dir():
        # /dev/stdout, /dev/null, a pipe: what is written to stays what it is.
        with path.open("wb") as file:
            file.write(data)
        return
    part = path.with_name(f".stepscope-{os.urandom(8).hex()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
