"""A running job on 80 columns, and as metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from rich.cells import cell_len

from stepscope.live.report.watch.prometheus import exposition
from stepscope.live.report.watch.view import live_document
from stepscope.live.shapes.alert import Alert
from stepscope.live.shapes.live import SILENT, LiveView, RankLive
from stepscope.live.view import grouped
from stepscope.report.document.terminal import to_text
from tests.conftest import Golden
from tests.wording import mentions

GOLDEN = Path(__file__).parent / "golden"
LINE = re.compile(r'^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{rank="\d+"\})? -?[0-9.e+-]+)$')


def rank(number: int, **more: object) -> RankLive:
    healthy = RankLive(
        rank=number,
        state="runs",
        step=1200,
        step_ns=46.3e6,
        baseline_ns=45e6,
        step_deviation=0.03,
        wait_share=0.31,
        wait_ns=14.4e6,
        samples_per_s=690.0,
        gpu_util=0.62,
        device_bytes=31_000_000_000,
        device_total_bytes=80_000_000_000,
        rss_bytes=5_200_000_000,
    )
    return replace(healthy, **more)  # type: ignore[arg-type]


def view(ranks: list[RankLive], **more: object) -> LiveView:
    groups, left_out = grouped(ranks)
    whole = LiveView(
        path="stepscope-runs/2026-11-15-101500",
        command=("python", "train.py"),
        exit_code=None,
        running_s=3725.0,
        ranks=tuple(ranks),
        groups=groups,
        num_outliers_left_out=left_out,
        world_size=len(ranks),
        bound="the input: 31% of a step is spent waiting for the loader",
    )
    return replace(whole, **more)  # type: ignore[arg-type]


def crowd() -> LiveView:
    ranks = [rank(number) for number in range(64)]
    ranks[5] = rank(5, step_ns=60e6)
    ranks[9] = rank(9, state=SILENT, quiet_s=75.0)
    words = (
        "rank 9: silent for 11 s: its process is gone, stopped, inside one long call, or cannot "
        "write"
    )
    alert = Alert(
        kind="silent", ranks=(9,), step=1100, words=words, at_wall_ns=1_800_000_000_000_000_000
    )
    return view(ranks, alerts=(alert,), world_size=72)


def test_many_ranks_render_in_few_lines(check_golden: Golden) -> None:
    text = re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", to_text(live_document(crowd())))
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    check_golden(GOLDEN / "live_crowd.txt", text)


def test_a_rank_without_a_device_has_no_columns_for_it() -> None:
    alone = view(
        [rank(0, gpu_util=None, device_bytes=None, device_total_bytes=None, samples_per_s=None)],
        exit_code=3,
    )
    text = to_text(live_document(alone))
    assert "gpu" not in text
    assert mentions(text, "exit code 3")
    assert "Step 1200, 46.3 ms" in text
    assert "21.6 steps/s\n" in text


def test_a_job_that_has_not_stepped_says_so() -> None:
    assert mentions(to_text(live_document(view([]))), "no rank", "step yet")


def test_metrics_are_well_formed_and_leave_out_what_was_not_measured() -> None:
    text = exposition(view([rank(0), rank(1, gpu_util=None)]))
    assert all(LINE.match(line) for line in text.splitlines())
    assert 'stepscope_step_seconds{rank="1"} 0.0463' in text
    assert 'stepscope_steps_total{rank="0"} 1200' in text
    assert 'stepscope_gpu_utilization_ratio{rank="0"} 0.62' in text
    assert 'stepscope_gpu_utilization_ratio{rank="1"}' not in text
    assert exposition(None) == "\n"
