"""Troubles of single ranks become alerts of the job: each fault once, its ranks together, and once
more when it is over."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.numbers import number_ranges
from stepscope.live.shapes.alert import OVER, RAISED, Alert, Measured


class Trouble(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, as one detector sees it."""

    kind: str
    """One of core.live.KINDS."""
    ranks: tuple[int, ...]
    words: str
    """Words after the ranks' name."""
    since_s: float | None = None
    """Time on the wall clock; None where that is not known."""
    step: int | None = None
    before: float | None = None
    after: float | None = None
    unit: str | None = None
    ended_s: float | None = None
    """None while it lasts; the rest is as it was when it began."""


def over(trouble: Trouble, at_s: float) -> Trouble:
    return replace(trouble, ended_s=at_s)


ACTIONS = {
    "late-rank": (
        "Compare its host and device with its neighbours' (`stepscope triage`, `stepscope "
        "attach`); move the rank if they are not alike."
    ),
    "slow-group": "Look for what these ranks share: a host, a switch, a power supply, a shard.",
    "step-time": "Diagnose the recording, or `stepscope compare` it with the run's first.",
    "busy-machine": "End or move what else runs there, or give the job cores of its own.",
    "loader": "Give the loader more workers, or look at where its files are: `stepscope triage`.",
    "bandwidth": (
        "Look at the links' counters and at who else uses them: `NCCL_DEBUG=INFO` names the path, "
        "`stepscope calibrate` measures it."
    ),
    "clock": "Look at the device's temperature, power and fans: `nvidia-smi -q -d PERFORMANCE`.",
    "utilisation": "The device waits: see the loader, the other ranks, or record (kill -USR2).",
    "loss-nan": "Stop, and go back to the last checkpoint before the step named.",
    "loss-spike": "Save now; if it does not come down, go back and skip these batches.",
    "host-memory": "Save now. Look for lists that grow, and tensors kept with their graphs.",
    "device-memory": "Save now. A smaller batch, or tensors that are kept: `--memory` names them.",
    "silent": "See whether its process lives; any other rank waits for it.",
    "stalled": "`stepscope attach` says where it stands.",
}
SAME_S = 10.0
"""Ranks whose troubles of one kind begin so close together have one fault."""
HELD_S = {"loss-nan": 1.5, "host-memory": 1.5, "device-memory": 1.5}
"""Ranks write once a second, each at its own time: so long the others may still come, and the one
that was first is named first."""
QUIET_S, MAX_QUIET_S = 30.0, 3600.0
"""Seconds between two faults of a kind on the same ranks that are told; doubled with each, so that
a job that keeps changing does not fill a log."""


@dataclass(slots=True, kw_only=True)
class _Episode:
    trouble: Trouble
    """The trouble of the rank that was first."""
    due_s: float
    ranks: set[int]
    lasting: set[int]
    number: int = 0
    """0 before it is told, and of one that is kept quiet."""
    is_quiet: bool = False


class Episodes:
    """What is wrong just now."""

    def __init__(self) -> None:
        self._active: list[_Episode] = []
        self._num_told = 0
        self._quiet: dict[tuple[str, tuple[int, ...]], tuple[float, float]] = {}
        """Time until which each is quiet, and for how long the next time."""

    def add(self, troubles: list[Trouble], now_s: float) -> tuple[Alert, ...]:
        """What is to be told now."""
        alerts = []
        for trouble in troubles:
            if trouble.ended_s is None:
                self._begin(trouble, now_s)
            else:
                alerts += self._end(trouble, now_s)
        for episode in self._active:
            if not episode.number and not episode.is_quiet and now_s >= episode.due_s:
                alerts += self._tell(episode, now_s)
        return tuple(alerts)

    def _begin(self, trouble: Trouble, now_s: float) -> None:
        for episode in self._active:
            first = episode.trouble
            is_same = first.kind == trouble.kind and (
                first.since_s is None
                or trouble.since_s is None
                or abs(first.since_s - trouble.since_s) <= SAME_S
            )
            if is_same:
                episode.ranks |= set(trouble.ranks)
                episode.lasting |= set(trouble.ranks)
                if (trouble.since_s or 0.0) < (first.since_s or 0.0) and not episode.number:
                    episode.trouble = trouble
                return
        self._active.append(
            _Episode(
                trouble=trouble,
                due_s=now_s + HELD_S.get(trouble.kind, 0.0),
                ranks=set(trouble.ranks),
                lasting=set(trouble.ranks),
            )
        )

    def _tell(self, episode: _Episode, now_s: float) -> list[Alert]:
        trouble = episode.trouble
        key = trouble.kind, tuple(sorted(episode.ranks))
        until_s, next_s = self._quiet.get(key, (0.0, QUIET_S))
        if now_s < until_s:
            episode.is_quiet = True
            return []
        self._quiet[key] = now_s + next_s, min(2 * next_s, MAX_QUIET_S)
        self._num_told += 1
        episode.number = self._num_told
        return [_alert(episode, RAISED, now_s)]

    def end_all(self, now_s: float) -> tuple[Alert, ...]:
        """The job begins anew, with other processes."""
        told = [episode for episode in self._active if episode.number]
        self._active = []
        return tuple(_alert(episode, OVER, now_s, now_s) for episode in told)

    def _end(self, trouble: Trouble, now_s: float) -> list[Alert]:
        alerts = []
        for episode in list(self._active):
            is_member = episode.trouble.kind == trouble.kind and episode.lasting & set(
                trouble.ranks
            )
            if not is_member:
                continue
            episode.lasting -= set(trouble.ranks)
            if not episode.lasting:
                self._active.remove(episode)
                if episode.number:
                    alerts.append(_alert(episode, OVER, now_s, trouble.ended_s))
        return alerts


def _alert(episode: _Episode, state: str, now_s: float, ended_s: float | None = None) -> Alert:
    trouble, ranks = episode.trouble, tuple(sorted(episode.ranks))
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {number_ranges(ranks)}"
    if len(ranks) > len(trouble.ranks):
        who += f", first rank {trouble.ranks[0]}"
    words = f"{who}: {trouble.words}"
    if state == OVER and trouble.since_s is not None and ended_s is not None:
        words = f"over after {max(ended_s - trouble.since_s, 0):.0f} s. {words}"
    elif state == OVER:
        words = f"over. {words}"
    measured = None
    if trouble.unit is not None:
        measured = Measured(before=trouble.before, after=trouble.after, unit=trouble.unit)
    return Alert(
        kind=trouble.kind,
        ranks=ranks,
        step=trouble.step,
        words=words,
        at_wall_ns=round(now_s * 1e9),
        number=episode.number,
        state=state,
        began_wall_ns=None if trouble.since_s is None else round(trouble.since_s * 1e9),
        ended_wall_ns=None if ended_s is None else round(ended_s * 1e9),
        measured=measured,
        action="" if state == OVER else ACTIONS[trouble.kind],
    )
