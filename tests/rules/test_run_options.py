"""After `stepscope run`, advice names its options and not the profiler's."""

from __future__ import annotations

from msgspec.structs import replace

from stepscope.core.diagnosis import Abstention
from stepscope.core.run import RunFacts
from stepscope.rules.verdict import OPTIONS, in_run_options
from tests.scenarios import SCENARIOS
from tests.wording import mentions

NOTE = "lines are not named: with_stack=True in the profiler records them, and slows the host more"
NEEDS = "profile with profile_memory=True"


def test_a_recorded_run_is_told_our_options_and_a_trace_the_profilers() -> None:
    trace = replace(
        SCENARIOS["comms_eight_ranks"](),
        notes=(NOTE,),
        abstentions=(Abstention(code="memory-growth", reason="not recorded", needs=NEEDS),),
    )
    assert in_run_options(trace) == trace
    run = RunFacts(path="r", command=("python",), exit_code=0, ranks=())
    told = in_run_options(replace(trace, facts=replace(trace.facts, run=run)))
    (note,) = told.notes
    assert mentions(note, "--stacks")
    assert told.abstentions[0].needs == "rerun with --memory"


def test_the_longest_wording_is_tried_first() -> None:
    for at, (words, _) in enumerate(OPTIONS):
        assert not any(words in later for later, _ in OPTIONS[at + 1 :]), words
