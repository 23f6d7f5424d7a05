"""What the hooks record, one entry for each call that they watch."""

from __future__ import annotations

from collections import deque
from typing import Any

WAITED, PASSED, STEPPED, SAVED, COLLECTED, EVALUATED, EXCHANGED, LOGGED = range(8)
Tape = deque[tuple[int, int, Any, Any]]
"""What it was, when it began and ended, and whose it was; of a wait for a batch how long its
thread ran meanwhile (-1: not measured; None: the epoch was over), of a log and an evaluation the
line that asked for it, of a save the fields of its event. A collection has two entries, which
garbage.py reads. The writer reads it once a second; the training thread where a step needs a look,
which is seldom."""
NOTED_NS = 1_000_000
"""A collection of garbage, or a log, this long is worth a line of its own."""
MAX_TAPED = 50_000
"""Entries kept until they are read: in a job that never steps nobody reads them."""
