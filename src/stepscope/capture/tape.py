"""What the hooks record, one entry for each call that they watch."""

from __future__ import annotations

from collections import deque

WAITED, PASSED, STEPPED, SAVED, COLLECTED = range(5)
Tape = deque[tuple[int, int, int, int]]
"""What it was, when it began and ended, and whose it was. The writer reads it once a second;
the training thread where a step needs a look, which is seldom."""
MOST_TAPED = 50_000
"""Entries kept until they are read: in a job that never steps nobody reads them."""
