"""The timeline as plain values for the page: numbers in few columns, every text once.

| key | what it holds |
|---|---|
| `strings` | every text; 0 is the empty one, which stands for "not known" |
| `whats` | per kind of slice, for each of `fields` a code into `strings`, one after the other |
| `lanes` | per lane label, kind, how many rows |
| `rows` | per row, how many slices |
| `start`, `dur`, `what` | per slice, row after row; a start counts from the one before in its row |
| `launched`, `launch` | slices with a known launch, and that launch; each counts from the last |
| `blocks` | slice number, how many slices it stands for, their time |
| `sizes` | slice number, bytes |
| `gaps`, `gap_parts` | the window's pieces without holes: nanoseconds, and which of `parts` |
| `parts` | name and words of each part of the step |

Times are nanoseconds from where the picture begins. The texts are strangers': cleaned here, they
still may hold any markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.core.facts import PARTS
from stepscope.core.timeline import Slices, Timeline, What
from stepscope.core.trace import NONE, Int64
from stepscope.protocol.json_text import json_text
from stepscope.report.diagnosis.view import part_words
from stepscope.report.words import clean, kernel_name, op_name, shorten

WHAT = ("label", "name", "kind", "category", "op", "module", "line", "phase")
"""The fields of a kind of slice."""
STRING_CHARS = 500_000
"""Characters of all texts together, as they are written."""
WIDTHS = (400, 200, 100, 48, 20)
"""Characters of one text: the first that keeps all under that. With the last there are no labels
beside the names."""


def timeline_values(timeline: Timeline) -> dict[str, Any]:
    """What `stepscopeTimeline` draws."""
    slices, gaps, low = timeline.slices, timeline.gaps, timeline.low_ns
    strings, whats = _strings(timeline.whats)
    launched = np.flatnonzero(slices.launch != NONE)
    blocks = np.flatnonzero(slices.count > 1)
    sizes = np.flatnonzero(slices.size_bytes != NONE)
    return {
        "rank": timeline.rank,
        "step": timeline.step,
        "num_steps": timeline.num_steps,
        "where": timeline.where,
        "window": [timeline.window[0] - low, timeline.window[1] - low],
        "strings": strings,
        "fields": list(WHAT),
        "whats": whats,
        "lanes": [
            [shorten(clean(lane.label), 60), lane.kind, lane.num_rows] for lane in timeline.lanes
        ],
        "rows": np.bincount(
            slices.row, minlength=sum(lane.num_rows for lane in timeline.lanes)
        ).tolist(),
        "start": _starts(slices, low),
        "dur": slices.dur_ns.tolist(),
        "what": slices.what.tolist(),
        "launched": _deltas(launched),
        "launch": _deltas(slices.launch[launched]),
        "blocks": np.stack([blocks, slices.count[blocks], slices.busy_ns[blocks]], axis=1)
        .reshape(-1)
        .tolist(),
        "sizes": np.stack([sizes, slices.size_bytes[sizes]], axis=1).reshape(-1).tolist(),
        "parts": [
            [part, part_words(part, is_split=gaps.waits_split, on_host=timeline.where == "host")]
            for part in PARTS
        ],
        "gaps": gaps.dur_ns.tolist(),
        "gap_parts": gaps.part.tolist(),
        "gap_moved_ns": gaps.moved_ns,
        "num_events": timeline.num_events,
        "num_left_out": timeline.num_left_out,
        "num_lanes_left_out": timeline.num_lanes_left_out,
        "num_frames": timeline.num_frames,
    }


def _deltas(values: Int64) -> list[int]:
    deltas: list[int] = np.diff(values, prepend=0).tolist()
    return deltas


def _starts(slices: Slices, low: int) -> list[int]:
    if len(slices) == 0:
        return []
    before = np.concatenate([[low], slices.start_ns[:-1]])
    before[np.flatnonzero(np.diff(slices.row, prepend=NONE))] = low
    starts: list[int] = (slices.start_ns - before).tolist()
    return starts


def _strings(whats: Sequence[What]) -> tuple[list[str], list[int]]:
    """The table of texts, the longest cut where they are too many, and every What as codes into
    it."""
    safe: dict[str | None, str] = {}
    rows = [_texts(what, safe) for what in whats]
    for width in WIDTHS:
        texts = {"": 0}
        if width == WIDTHS[-1]:
            rows = [("", *row[1:]) for row in rows]
        cut = (_cut(text, width) for row in rows for text in row)
        codes = [texts.setdefault(text, len(texts)) for text in cut]
        if len(json_text(list(texts))) <= STRING_CHARS:
            break
    return list(texts), codes


def _cut(text: str, width: int) -> str:
    """Both ends of a text that is too long: names of one kind often differ at their end alone."""
    head = width * 3 // 5
    return text if len(text) <= width else f"{text[: head - 3]}...{text[head - width :]}"


def _texts(what: What, safe: dict[str | None, str]) -> tuple[str, ...]:
    """Texts in the order of WHAT; no label where it would be the name. A text is cleaned once: it
    occurs many times."""
    values = (what.name, what.kind, what.category, what.op, what.module, what.line, what.phase)
    name, *others = [
        safe[value] if value in safe else safe.setdefault(value, clean(value or ""))
        for value in values
    ]
    label = kernel_name(name) if what.kind in ("kernel", "copy", "set") else op_name(name)
    return ("" if label == name else label, name, *others)
