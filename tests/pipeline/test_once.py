"""Every file is parsed once and every rule asked once for each rank, whatever a command makes of
it."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.cli.main import main
from stepscope.pipeline import contexts
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording, diagnose
from stepscope.readers.kineto import trace as kineto
from stepscope.report.diagnosis.json import to_json
from stepscope.rules import registry
from stepscope.rules.judge import judge
from stepscope.rules.rule import Rule
from tests.rules.job_cases import ddp
from tests.shared_data import DEMO, lab_trace, lab_traces

SMALL = lab_trace("single/elementwise_chain.slow")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was parsed in this process."""
    counts: Counter[str] = Counter()
    read = kineto.read

    def counted(source: Any, *more: Any) -> Any:
        counts[Path(str(source.path)).name] += 1
        return read(source, *more)

    monkeypatch.setattr(kineto, "READER", replace(kineto.READER, read_trace=counted))
    return counts


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each rule was asked about a rank, and about all of them."""
    counts: Counter[str] = Counter()

    def counting(rule: Rule, function: str) -> Rule:
        plain = getattr(rule, function)

        def counted(case: Any) -> Any:
            counts[f"{rule.code} {function}"] += 1
            return plain(case)

        return replace(rule, **{function: counted})

    plain = {entry.code: entry.rule for entry in registry.OURS}
    for code, rule in plain.items():
        for function in ("propose", "propose_job"):
            if getattr(rule, function) is not None:
                plain[code] = counting(plain[code], function)
    monkeypatch.setattr(registry.Entry, "rule", property(lambda entry: plain[entry.code]))
    return counts


def run(*words: str | Path) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        assert main([str(word) for word in words]) == 0, out.getvalue()


def test_one_rank_is_parsed_and_judged_once(
    parsed: Counter[str], asked: Counter[str], tmp_path: Path
) -> None:
    run("report", DEMO, "--no-cache", "-o", tmp_path / "report.html")
    assert parsed == {DEMO.name: 1}
    assert set(asked.values()) == {1}
    assert len(asked) > 15


@pytest.mark.parametrize(
    ("command", "traces", "num"),
    [
        ("report", "rank_traces/pp_gpipe_w4.slow.*", 4),
        ("export", "rank_traces/gloo_late_rank.slow.*", 2),
    ],
)
def test_ranks_are_parsed_and_judged_once_each(
    command: str,
    traces: str,
    num: int,
    parsed: Counter[str],
    asked: Counter[str],
    tmp_path: Path,
) -> None:
    paths = lab_traces(traces)
    assert len(paths) == num
    words = ["export", "perfetto"] if command == "export" else [command]
    run(*words, *paths, "--no-cache", "--jobs", "1", "-o", tmp_path / "made.json")
    assert parsed == {path.name: 1 for path in paths}
    ranks = {code: times for code, times in asked.items() if code.endswith("propose")}
    assert set(ranks.values()) == {num}, ranks
    assert {times for code, times in asked.items() if code.endswith("propose_job")} == {1}


def test_ranks_read_by_other_processes_are_not_parsed_again(parsed: Counter[str]) -> None:
    paths = lab_traces("rank_traces/gloo_late_rank.slow.*")
    with Recording(paths, Options(use_cache=False, jobs=2)) as recording:
        assert recording.diagnosis.findings
        folder = recording.contexts.folder
        assert len(list(folder.iterdir())) == 2
    assert not parsed
    assert not folder.exists()


def test_traces_too_large_to_keep_are_not_parsed_again(
    parsed: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "MAX_KEPT_EVENTS", 10)
    paths = [tmp_path / f"rank{rank}.pt.trace.json.zst" for rank in range(2)]
    for path in paths:
        shutil.copy(SMALL, path)
    options = Options(use_cache=False, jobs=1)
    with Recording(paths, options) as recording:
        first = to_json(recording.diagnosis)
        recording.context(recording.inputs.sources[0])
    assert parsed == {path.name: 1 for path in paths}
    monkeypatch.undo()
    assert to_json(diagnose(paths, options)) == first


def test_a_log_beside_a_trace_does_not_have_it_judged_twice(
    parsed: Counter[str], asked: Counter[str], tmp_path: Path
) -> None:
    shutil.copy(DEMO, tmp_path / "trace.pt.trace.json.gz")
    (tmp_path / "train.log").write_text(
        "".join(f"step {step} | loss 2.{step} | step time 66.0 ms\n" for step in range(40))
    )
    run("diagnose", tmp_path, "--no-cache")
    assert set(parsed.values()) == {1}
    assert set(asked.values()) == {1}


def test_ranks_that_are_the_same_are_judged_as_one(tmp_path: Path) -> None:
    for rank in range(3):
        shutil.copy(SMALL, tmp_path / f"rank{rank}.pt.trace.json.zst")
    options = Options(use_cache=False, jobs=1)
    one, three = diagnose([SMALL], options), diagnose([tmp_path], options)
    assert [replace(finding, ranks=()) for finding in three.findings] == [
        replace(finding, ranks=()) for finding in one.findings
    ]
    assert {finding.ranks for finding in three.findings} == {(0, 1, 2)}
    assert (three.verdict, three.ladder, three.replay) == (one.verdict, one.ladder, one.replay)


def test_ranks_that_exchange_data_and_are_the_same_are_judged_as_one() -> None:
    fleet = ddp()
    traces = fleet.traces()
    two, one = fleet.job(traces), fleet.job(traces[:1])
    assert two.step_interval_ns == pytest.approx(one.step_interval_ns, rel=0.01)
    gains = [
        {finding.code: finding.predicted_speedup for finding in judge(job).findings}
        for job in (one, two)
    ]
    shared = gains[0].keys() & gains[1].keys()
    assert shared
    assert {code: gains[0][code] for code in shared} == pytest.approx(
        {code: gains[1][code] for code in shared}, rel=0.02
    )


def test_the_rank_that_a_log_was_compared_with_is_not_read_by_a_worker_too(
    parsed: Counter[str], tmp_path: Path
) -> None:
    paths = [tmp_path / f"rank{rank}.pt.trace.json.zst" for rank in range(2)]
    for path in paths:
        shutil.copy(SMALL, path)
    with Recording(paths, Options(use_cache=False, jobs=2)) as recording:
        recording.context(recording.inputs.sources[0])
        assert len(recording.job.facts.ranks) == 2
        assert len(list(recording.contexts.folder.iterdir())) == 1, (
            "the other rank's columns alone came from a worker"
        )
    assert parsed == {paths[0].name: 1}
