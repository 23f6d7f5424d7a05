"""The verdict. For now it names the largest part of the step's partition; the replay will say what removing it would give."""

from __future__ import annotations

from stepscope.core.diagnosis import Diagnosis, StepTime, Verdict
from stepscope.core.facts import Facts, RankFacts

BOUND_OF_PART = {
    "compute": "compute",
    "comms_wait": "comms",
    "comms_transfer": "comms",
    "transfer": "transfer",
    "idle_input": "data",
    "idle_sync": "host",
    "idle_launch": "host",
    "idle_allocator": "host",
    "idle_compile": "host",
    "idle_io": "host",
    "idle_other": "host",
}
WORDS = {
    "compute": "the device is computing",
    "comms": "communication between ranks that nothing hides",
    "transfer": "copies between host and device that nothing hides",
    "data": "the device waits for input",
    "host": "the device waits for the host",
}
HOST_WORDS = {
    "idle_sync": "the host blocks on the device and then launches too late",
    "idle_launch": "the host launches work more slowly than the device does it",
    "idle_allocator": "the host is allocating or freeing device memory",
    "idle_compile": "the host is compiling",
    "idle_io": "the host is saving or loading",
    "idle_other": "what the host does meanwhile was not recorded",
}


def diagnose(facts: Facts, notes: tuple[str, ...] = ()) -> Diagnosis:
    """What was measured, as a Diagnosis."""
    rank = facts.median_rank
    verdict = _verdict(rank)
    return Diagnosis(
        verdict=verdict,
        step=_step(facts, rank),
        replay=None,
        findings=(),
        facts=facts,
        notes=(*notes, *_notes(facts, rank)),
        unknown_events=sum(sum(r.unknown.values()) for r in facts.ranks),
    )


def _verdict(rank: RankFacts) -> Verdict:
    typical = rank.typical_parts_ns
    if typical is None or not any(typical.values()):
        return Verdict(bound="unknown", summary="Nothing to judge: the trace shows no step with work in it.", shares={})
    total = sum(typical.values())
    parts = {part: value / total for part, value in typical.items()}
    shares: dict[str, float] = {}
    for part, share in parts.items():
        bound = BOUND_OF_PART[part]
        shares[bound] = shares.get(bound, 0.0) + share
    bound = max(shares, key=lambda b: shares[b])
    words = WORDS[bound]
    if bound == "host":
        words = HOST_WORDS[max(HOST_WORDS, key=lambda part: parts[part])]
        words = f"the device waits: {words}"
    if bound == "compute" and rank.steps.where == "host":
        words = "operators run on the host, no device was recorded"
    return Verdict(bound=bound, summary=f"{shares[bound]:.0%} of the step: {words}.", shares=shares)


def _step(facts: Facts, rank: RankFacts) -> StepTime:
    pitch = rank.steps.pitch_ns
    profiled = None if pitch is None else pitch / 1e6
    given = facts.given_step_ns
    return StepTime(
        count=rank.steps.num_seen,
        ms=profiled if given is None else given / 1e6,
        profiled_ms=profiled,
        source="trace" if given is None else "given",
    )


def _notes(facts: Facts, rank: RankFacts) -> tuple[str, ...]:
    shown = rank.rank
    several = len(facts.ranks) > 1
    notes = [
        f"rank {r.rank}: {note}" if several else note
        for r in facts.ranks
        for note in (r.notes if not several or r.rank == shown else ())
    ]
    if several:
        others = sum(1 for r in facts.ranks if r.rank != shown and r.notes)
        notes += [f"{others} other rank(s) have notes of their own"] if others else []
    if facts.given_step_ns is None and rank.steps.pitch_ns is not None:
        notes.append("step time is the profiled one, which the profiler's own cost lengthens; give the real one with --step-ms")
    comms = rank.partition is not None and any(rank.partition.parts["comms_transfer"])
    if comms and rank.partition is not None and not rank.partition.waits_split:
        notes.append("waiting for other ranks is not told apart from moving bytes: comms_wait is not measured")
    if any(r.unknown for r in facts.ranks):
        names: dict[str, int] = {}
        for r in facts.ranks:
            for name, count in r.unknown.items():
                names[name] = names.get(name, 0) + count
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(names.items(), key=lambda item: -item[1])[:12])
        notes.append(f"events of kinds we do not know, counted and left out: {listed}")
    return tuple(notes)
