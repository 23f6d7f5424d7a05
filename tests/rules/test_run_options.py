"""After `stepscope run`, advice names its options and not the profiler's."""

from __future__ import annotations

from pathlib import Path

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recorders import KINETO, NSYS, RUN, recorder_of
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.report.diagnosis.json import to_json
from tests.shared_data import DEMO, ROOT

KEPT = ROOT / "tests" / "kept" / "run"


def diagnosed(path: Path) -> Diagnosis:
    return diagnose([path], Options(use_cache=False, jobs=1))


def test_a_recorded_run_is_told_our_options_and_a_trace_the_profilers() -> None:
    run, trace = diagnosed(KEPT), diagnosed(DEMO)
    assert any(RUN.slow_stacks in note for note in run.notes)
    for option in ("with_stack=True", "profile_memory=True", "torch.profiler.schedule"):
        assert option not in to_json(run)
    needs = {each.code: each.needs for each in trace.abstentions}
    assert needs["memory-growth"] == KINETO.with_memory
    assert "--memory" not in to_json(trace)


def test_a_recorder_is_known_by_what_it_wrote() -> None:
    assert recorder_of(("torch",), is_run=False) is KINETO
    assert recorder_of(("torch",), is_run=True) is RUN
    assert recorder_of(("nsys", "cuda"), is_run=False) is NSYS
