"""Every case of the lab, by set."""

from __future__ import annotations

from lab.case import Case
from lab.first import FIRST
from lab.second import SECOND

SETS: dict[str, dict[str, Case]] = {"first": FIRST, "second": SECOND}
CASES: dict[str, Case] = FIRST | SECOND
