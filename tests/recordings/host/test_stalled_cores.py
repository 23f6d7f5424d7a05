"""stalled-cores: less than an instruction a cycle, and what the cores wait for."""

from __future__ import annotations

from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.system import HostCounters, SystemRecording, SystemReport
from stepscope.recordings.host import stalled_cores
from tests.wording import mentions


def judged(**counts: float) -> Advice | Abstention | None:
    counters = HostCounters(path="stat.txt", **counts)  # type: ignore[arg-type]
    recording = SystemRecording(format="perf", paths=("stat.txt",), counters=(counters,))
    return stalled_cores.advise(Auxiliary(system=SystemReport(recordings=(recording,))))


def test_cores_that_wait_for_memory() -> None:
    advice = judged(cycles=100.0, instructions=50.0, cache_misses=1.0, cache_references=4.0)
    assert isinstance(advice, Advice)
    assert mentions(advice.summary, "0.50", "memory")
    assert mentions(advice.evidence[0], "20 cache misses", "25%")


def test_cores_that_guess_wrong() -> None:
    advice = judged(cycles=100.0, instructions=50.0, branches=10.0, branch_misses=1.0)
    assert isinstance(advice, Advice)
    assert mentions(advice.summary, "branches")
    assert not mentions(advice.summary, "memory")


def test_cores_at_work_are_left_alone() -> None:
    """However many misses there are: other instructions go on beside them."""
    assert judged(cycles=100.0, instructions=250.0, cache_misses=5.0) is None


def test_what_was_not_counted_is_not_judged() -> None:
    for counts in ({"page_faults": 3.0}, {"cycles": 100.0, "instructions": 50.0}):
        assert isinstance(judged(**counts), Abstention), counts
