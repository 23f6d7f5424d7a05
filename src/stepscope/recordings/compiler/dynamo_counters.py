"""torch._dynamo.utils.counters as JSON: what one process counted, by section.

    {"stats": {"calls_captured": 20, "unique_graphs": 11},
     "graph_break": {"Failed to trace builtin operator\\n  Explanation: ...": 2},
     "inductor": {"fxgraph_cache_miss": 13}, ...}

Reasons come with TorchDynamo's hints but without locations: TORCH_LOGS=graph_breaks or TORCH_TRACE
has these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from stepscope.api import FormatError, Reader, Source
from stepscope.core.recordings.compiler import CacheUse, CompilerRecording, Counted
from stepscope.readers.whole_file import whole_json
from stepscope.recordings.compiler.breaks import counted_break

RECORD = "json.dump(torch._dynamo.utils.counters, file)"
MAX_BYTES = 32 << 20
"""Reasons are a kilobyte each, and a run has dozens."""
MAX_COUNT = 1 << 62
MAX_REASONS = 2_000
MINE = re.compile(
    rb"\"(?:unique_graphs|calls_captured|(?:fxgraph|autograd)_cache_\w{1,40})\"\s*:\s*\d|\"graph_break\"\s*:\s*\{"
    rb"|\"(?:frames|aot_autograd)\"\s*:\s*\{\s*\"(?:total|ok)\""
)
NESTED = re.compile(rb"[\s\xef\xbb\xbf]*\{\s*\"[^\"]{1,200}\"\s*:\s*\{")
LIMIT = re.compile(r"recompile limit exceeded|\w{1,60}_limit reached", re.IGNORECASE)
BRANCHING = re.compile(r"data-dependent (?:branching|assertion|jump)|generic_jump", re.IGNORECASE)
"""Breaks that TorchDynamo counts with what it does not implement, not with the breaks."""
CACHES = (
    ("inductor", "fxgraph_cache", "FX graph"),
    ("aot_autograd", "autograd_cache", "AOTAutograd"),
)


def is_mine(head: bytes, _name: str) -> bool:
    return NESTED.match(head) is not None and MINE.search(head) is not None


def read_file(source: Source) -> CompilerRecording:
    sections, odd, problem = _sections(source)
    notes = [f"{odd} entries are not counts and were left out"] if odd else []
    notes += [problem] if problem else []
    return CompilerRecording(
        format="dynamo-counters",
        paths=(source.label,),
        notes=tuple(notes),
        counted=(_counted(source.label, sections),),
        caches=tuple(_caches(source.label, sections)),
        counters=tuple(
            (section, name, count)
            for section, counts in sections.items()
            for name, count in counts.items()
        ),
    )


def _sections(source: Source) -> tuple[dict[str, dict[str, int]], int, str | None]:
    """Counts by section and name; how many entries were no counts; and what was wrong with the
    file."""
    counters, problem = whole_json(source, MAX_BYTES, f"write it again: {RECORD}")
    sections: dict[str, dict[str, int]] = {}
    odd = 0
    for section, counts in counters.items() if isinstance(counters, dict) else ():
        mine = sections.setdefault(section, {})
        for name, count in counts.items() if isinstance(counts, dict) else ():
            if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_COUNT:
                mine[name] = count
            else:
                odd += 1
        odd += not isinstance(counts, dict)
    if not any(sections.values()):
        raise FormatError(
            f"{source.label} has no counts in it. Write them at the end of the run: {RECORD}"
        )
    return sections, odd, problem


def _counted(path: str, sections: Mapping[str, Mapping[str, int]]) -> Counted:
    refused = sections.get("unimplemented", {})
    frames = sections.get("frames", {})
    reasons = dict(sections.get("graph_break", {}))
    reasons |= {
        text: count
        for text, count in refused.items()
        if BRANCHING.search(text[:400]) and text not in reasons
    }
    ordered = sorted(reasons.items(), key=lambda pair: -pair[1])[:MAX_REASONS]
    return Counted(
        path=path,
        frames=frames.get("total"),
        frames_ok=frames.get("ok"),
        graphs=sections.get("stats", {}).get("unique_graphs"),
        limit_hits=sum(count for text, count in refused.items() if LIMIT.search(text[:400])),
        breaks=tuple(
            (counted_break(text), count) for text, count in ordered if not LIMIT.search(text[:400])
        ),
    )


def _caches(path: str, sections: Mapping[str, Mapping[str, int]]) -> Iterator[CacheUse]:
    for section, prefix, name in CACHES:
        counts = sections.get(section, {})
        hits, misses = counts.get(f"{prefix}_hit"), counts.get(f"{prefix}_miss")
        if hits is not None or misses is not None:
            yield CacheUse(
                path=path,
                cache=name,
                hits=hits or 0,
                misses=misses or 0,
                bypassed=counts.get(f"{prefix}_bypass", 0),
            )


READER = Reader(is_mine=is_mine, read_file=read_file)
