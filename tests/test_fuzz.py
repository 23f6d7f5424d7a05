"""Traces whose structure was damaged go all the way: read, measured, judged and drawn, or refused in words."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import StepscopeError
from stepscope.readers.source import Source
from stepscope.report.json import to_json
from stepscope.report.terminal import render
from stepscope.rules.job import measure_job
from stepscope.rules.verdict import diagnose
from tests.shared_data import DEMO, SHARED

ROUNDS = 25 * int(os.environ.get("STEPSCOPE_FUZZ", "1"))
"""STEPSCOPE_FUZZ says how many times as long as in CI."""
KEPT_EVENTS = 700
"""Of each trace: enough for steps, launches and kernels, few enough for hundreds of rounds."""
NAMES = (
    "lab/single/elementwise_chain.slow.pt.trace.json.gz",
    "public/hta/amd_trace.mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "public/hta/critical_path.cuda_event_sync.event_sync_trace.json.gz",
    "public/tracelens/torch_compile_triton.trace.json.gz",
)
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**62, -(2**63), 10**30, 1.5, 1e18, -1e300, float("nan"), float("inf"),
    "", "x", "7", "12.5", "\u202e", [], [1], [[2, 3], [3, 4]], {}, {"a": 1},
    "ProfilerStep#1", "Optimizer.step#X", "kernel", "cpu_op", "cuda_runtime", "gpu_memcpy", "aten::mm",
)  # fmt: skip


def _events(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    step = max(1, len(trace["traceEvents"]) // KEPT_EVENTS)
    trace["traceEvents"] = trace["traceEvents"][::step]
    return trace


def _damage(trace: dict[str, Any], chance: random.Random) -> None:
    events: list[Any] = trace["traceEvents"]
    for _ in range(chance.choice([1, 3, 30, 300])):
        if not events:
            return
        at = chance.randrange(len(events))
        target = events[at]
        if isinstance(target, dict) and isinstance(target.get("args"), dict) and target["args"] and chance.random() < 0.5:
            target = target["args"]
        action = chance.choice(("change", "change", "drop", "swap", "twice", "all", "meta"))
        if action == "twice":
            events.insert(chance.randrange(len(events)), copy.deepcopy(events[at]))
        elif action == "swap":
            other = chance.randrange(len(events))
            events[at], events[other] = events[other], events[at]
        elif action == "meta":
            trace[chance.choice(("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "record_shapes"))] = chance.choice(
                VALUES
            )
        elif isinstance(target, dict) and target:
            key = chance.choice(list(target))
            if action == "drop":
                del target[key]
            elif action == "all":
                value = chance.choice(VALUES)
                for event in events[:: chance.choice([1, 2, 10])]:
                    if isinstance(event, dict) and key in event:
                        event[key] = value
            else:
                target[key] = chance.choice(VALUES)


@pytest.mark.parametrize("name", ["demo", *NAMES])
def test_a_damaged_trace_is_diagnosed_or_refused(name: str, tmp_path: Path) -> None:
    path = DEMO if name == "demo" else SHARED / name
    if not path.is_file():
        pytest.skip("the shared traces are not beside this checkout (../shared)")
    original = _events(path)
    chance = random.Random(name)
    damaged = tmp_path / "damaged.json"
    outcomes = {"diagnosed": 0, "refused": 0}
    for _ in range(ROUNDS):
        trace = copy.deepcopy(original)
        _damage(trace, chance)
        damaged.write_text(json.dumps(trace))
        try:
            job = measure_job([Source(path=damaged, label=str(damaged))], use_cache=False)
        except StepscopeError as problem:
            assert "damaged.json" in str(problem)  # noqa: PT017
            outcomes["refused"] += 1
            continue
        job.facts.self_check()
        diagnosis = diagnose(job, every=True)
        assert json.loads(to_json(diagnosis))["schema"] == "stepscope.diagnosis/1"
        assert max(map(len, render(diagnosis, width=80, color=False).splitlines())) <= 80
        outcomes["diagnosed"] += 1
    assert outcomes["diagnosed"] > ROUNDS // 2
