"""Timeline: one typical step of one rank, as lanes of slices and what the device waited for. Times
are integer nanoseconds."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.core.facts import PARTS
from stepscope.core.trace import NONE, Int64

HOST, STREAM, COLLECTIVES = "host", "stream", "collectives"
"""What a lane shows."""


class Lane(Struct, frozen=True, kw_only=True):
    """A host thread, a device's stream, or the collectives: some rows of slices."""

    label: str
    kind: str
    first_row: int
    num_rows: int


class What(Struct, frozen=True, kw_only=True):
    """What slices are that differ in nothing but their time. None: not recorded, or not the same
    for all that were joined."""

    name: str | None
    kind: str | None
    """op, mark, call, compile, kernel, copy or set."""
    category: str | None = None
    """Category of a kernel; of a collective its operation."""
    op: str | None = None
    """The operator that launched it."""
    module: str | None = None
    line: str | None = None
    phase: str | None = None
    """forward, backward or optimizer."""


class Slices(Struct, frozen=True, kw_only=True):
    """Slices by row, in each by start; those of one row do not overlap. A block stands for `count`
    slices too small to draw."""

    row: Int64
    start_ns: Int64
    dur_ns: Int64
    busy_ns: Int64
    """The length itself; of a block, that of the slices in it."""
    count: Int64
    what: Int64
    """Index of `Timeline.whats`."""
    launch: Int64
    """The slice that launched it, or the block that one is in; NONE when it was not recorded or
    lies before the picture."""
    size_bytes: Int64
    """Bytes of a copy or a collective; NONE when not recorded."""

    def __len__(self) -> int:
        return len(self.start_ns)


class Gaps(Struct, frozen=True, kw_only=True):
    """The window from end to end, each piece with its part of the step."""

    start_ns: Int64
    dur_ns: Int64
    part: Int64
    """Index of PARTS."""
    moved_ns: int
    """How far a piece may stand from its place: pieces too small to draw were put together by part.
    0: all stand exactly."""
    waits_split: bool
    """Whether waiting for other ranks is separate from moving bytes. If not, all is transfer."""


class Timeline(Struct, frozen=True, kw_only=True):
    """What one rank did in one step. The host runs ahead of the device, so the picture begins
    before the step's window."""

    rank: int
    step: int
    """Index of the step among the measured windows, from 0."""
    num_steps: int
    where: str
    """device, or host when nothing ran on a device: the gaps are then the host's."""
    low_ns: int
    """Where the picture begins; it ends with the window."""
    window: tuple[int, int]
    lanes: tuple[Lane, ...]
    slices: Slices
    whats: tuple[What, ...]
    gaps: Gaps
    num_events: int
    """Events of the trace that lie in the picture, Python frames not counted."""
    num_left_out: int
    """Events of those that are not drawn one by one: joined into blocks, or in lanes and rows too
    many to show."""
    num_lanes_left_out: int
    num_frames: int
    """Python frames, none of which is drawn."""

    def part_ns(self, part: str) -> int:
        """How long a part of the step lasts."""
        return int(self.gaps.dur_ns[self.gaps.part == PARTS.index(part)].sum())

    def self_check(self) -> None:
        """Assert that rows do not overlap, codes point somewhere and the gaps fill the window."""
        s, g = self.slices, self.gaps
        same = s.row[1:] == s.row[:-1]
        assert bool((s.row[1:] >= s.row[:-1]).all()), "rows out of order"
        assert bool((s.start_ns[1:] >= s.start_ns[:-1] + s.dur_ns[:-1])[same].all()), (
            "slices of a row overlap"
        )
        assert bool(((s.busy_ns >= 0) & (s.busy_ns <= s.dur_ns)).all())
        assert bool((s.count >= 1).all() and (s.busy_ns == s.dur_ns)[s.count == 1].all())
        assert bool(((s.launch >= NONE) & (s.launch < len(s))).all()), "a launch outside the slices"
        assert bool(((s.what >= 0) & (s.what < len(self.whats))).all())
        edge = 0
        for lane in self.lanes:
            assert lane.first_row == edge and lane.num_rows > 0
            edge += lane.num_rows
        assert not len(s) or int(s.row[-1]) < edge, "a row without a lane"
        ends = g.start_ns + g.dur_ns
        assert bool((g.start_ns[1:] == ends[:-1]).all()), "a hole between the gaps"
        assert not len(g.start_ns) or (int(g.start_ns[0]), int(ends[-1])) == self.window
        assert self.num_events - self.num_left_out == int(np.count_nonzero(s.count == 1)), (
            "slices lost count"
        )
