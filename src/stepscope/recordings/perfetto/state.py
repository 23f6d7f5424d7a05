"""What packets of one writer share: interned texts, defaults, a clock that counts on; and the
clocks of the whole file.

Field numbers are those of Perfetto's public schema (github.com/google/perfetto,
protos/perfetto/trace).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.trace import NONE
from stepscope.recordings.perfetto.wire import fields, signed

CATEGORIES, NAMES, ARG_NAMES, ARG_TEXTS = 1, 2, 3, 29
"""InternedData: event_categories, event_names, debug_annotation_names,
debug_annotation_string_values"""
INTERNED = (CATEGORIES, NAMES, ARG_NAMES, ARG_TEXTS)
MAX_INTERNED = 1 << 20
"""Texts of one writer that are kept."""
FIRST_OWN_CLOCK, LAST_OWN_CLOCK = 64, 127
"""Clocks of one writer alone: the numbers between."""


@dataclass(slots=True)
class Clock:
    """A clock against the file's: time = zero + value * unit."""

    zero_ns: int
    unit_ns: int = 1
    is_incremental: bool = False
    value: int = 0


@dataclass(slots=True)
class Sequence:
    """One writer."""

    interned: dict[int, dict[int, str]] = field(
        default_factory=lambda: {kind: {} for kind in INTERNED}
    )
    clocks: dict[int, Clock] = field(default_factory=dict)
    default_clock: int = NONE
    default_track: int = 0

    def clear(self) -> None:
        """What came before counts no more."""
        self.interned = {kind: {} for kind in INTERNED}
        self.default_clock, self.default_track = NONE, 0

    def intern(self, message: bytes) -> None:
        for kind, value in fields(message):
            if kind in INTERNED and isinstance(value, bytes):
                entry = dict(fields(value))
                iid, text = entry.get(1), entry.get(2)
                if (
                    isinstance(iid, int)
                    and isinstance(text, bytes)
                    and len(self.interned[kind]) < MAX_INTERNED
                ):
                    self.interned[kind][iid] = text.decode("utf-8", "replace")

    def take_defaults(self, message: bytes) -> None:
        """TracePacketDefaults: timestamp_clock_id 58, track_event_defaults 11 with track_uuid
        11."""
        for number, value in fields(message):
            if number == 58 and isinstance(value, int):
                self.default_clock = value
            elif number == 11 and isinstance(value, bytes):
                self.default_track = signed(
                    next((v for n, v in fields(value) if n == 11 and isinstance(v, int)), 0)
                )


@dataclass(slots=True)
class Clocks:
    """The file's clocks: each snapshot says what all of them showed at one moment. The first one's
    BOOTTIME is the file's."""

    clocks: dict[int, Clock] = field(default_factory=dict)
    num_unknown: int = 0
    """Times of a clock that nothing ties to the others."""

    def snapshot(self, message: bytes, sequence: Sequence) -> None:
        """ClockSnapshot.clocks (1): clock_id 1, timestamp 2, is_incremental 3, unit_multiplier_ns
        4; primary_trace_clock 2."""
        readings: dict[int, tuple[int, bool, int]] = {}
        for number, value in fields(message):
            if number == 1 and isinstance(value, bytes):
                entry = {key: number for key, number in fields(value) if isinstance(number, int)}
                readings[entry.get(1, 0)] = (
                    entry.get(2, 0),
                    bool(entry.get(3, 0)),
                    min(max(entry.get(4, 1), 1), 10**9),
                )
        anchors = {
            clock: value
            for clock, (value, is_own, _) in readings.items()
            if not FIRST_OWN_CLOCK <= clock <= LAST_OWN_CLOCK
        }
        moment_ns = next(
            (
                self.clocks[clock].zero_ns + value
                for clock, value in anchors.items()
                if clock in self.clocks
            ),
            None,
        )
        if moment_ns is None:
            moment_ns = anchors.get(
                6, next(iter(anchors.values()), 0)
            )  # BOOTTIME, where it is there.
        for clock, (value, is_incremental, unit) in readings.items():
            made = Clock(
                zero_ns=moment_ns - value * unit,
                unit_ns=unit,
                is_incremental=is_incremental,
                value=value,
            )
            if FIRST_OWN_CLOCK <= clock <= LAST_OWN_CLOCK:
                sequence.clocks[clock] = made
            else:
                self.clocks.setdefault(clock, made)

    def wall_ns(self) -> int:
        """What the wall clock (REALTIME) showed when the file's clock was 0; 0 where no snapshot
        has both."""
        return max(-self.clocks[1].zero_ns, 0) if 1 in self.clocks else 0

    def time_ns(self, value: int, clock_id: int, sequence: Sequence) -> int:
        """A packet's time on the file's clock. A clock of NONE is the writer's usual one."""
        clock_id = sequence.default_clock if clock_id == NONE else clock_id
        if clock_id == NONE:
            return value
        clock = sequence.clocks.get(clock_id) or self.clocks.get(clock_id)
        if clock is None:
            self.num_unknown += clock_id != 6
            return value
        if clock.is_incremental:
            clock.value += value
            value = clock.value
        return clock.zero_ns + value * clock.unit_ns
