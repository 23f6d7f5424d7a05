"""Where the lab's recordings lie: they are too big to travel with the code.

`lab/` has the recipes, what the clock said of each run (truth.json, board.json) and what was scored
(scored.json). The traces lie in a folder of the same subfolders elsewhere: the one that
STEPSCOPE_RECORDINGS names, else ../shared/recordings beside the checkout where there is one, else
`lab/` itself, for whoever recorded them anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT / "lab"
VARIABLE = "STEPSCOPE_RECORDINGS"


def recordings() -> Path:
    """Return the folder of all recordings of the lab."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    beside = ROOT.parent / "shared" / "recordings"
    return beside if beside.is_dir() else LAB


def recorded(path: Path) -> Path:
    """Return where the traces of a folder of the lab lie; any other folder has its own, and so has
    the newest set of the lab, until there is a copy elsewhere.

    lab/board   ../shared/recordings/board
    elsewhere   elsewhere
    """
    if not _is_labs(path) or any(path.glob("*.json.zst")):
        return path
    return recordings() / path.resolve().relative_to(LAB)


def demand(folders: Iterable[Path]) -> None:
    """End the command, in one line, where a folder of the lab has no traces."""
    for folder in filter(_is_labs, folders):
        place = recorded(folder)
        if not (place.is_file() or any(place.rglob("*.json.*z*"))):
            sys.exit(
                f"{folder}: no traces in {place}; name the folder of the lab's recordings in "
                f"{VARIABLE}, or record them anew (lab/README.md)"
            )


def _is_labs(path: Path) -> bool:
    return path.resolve().is_relative_to(LAB)
