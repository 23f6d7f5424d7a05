"""From what a run folder holds to what is known of the run. A value of the wrong kind is one that was not told."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyses.steps.unprofiled import unprofiled_steps
from stepscope.core.run import DeviceSample, Known, LoaderKnobs, RunFacts
from stepscope.protocol.untrusted import finite
from stepscope.readers.run_folder.folder import RankRecord, RunRecord

IDLE_REASONS = ("gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost")
"""Reasons to run slower that nothing is wrong with."""


def run_facts(record: RunRecord) -> RunFacts:
    """The run as a whole."""
    command, code = record.told.get("command"), record.told.get("exit_code")
    return RunFacts(
        path=str(record.path),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        exit_code=code if isinstance(code, int) else None,
        ranks=tuple(known(rank) for rank in record.ranks),
    )


def known(record: RankRecord) -> Known:
    """One rank, as far as it told."""
    told = record.told
    machine, flags = _dict(told, "machine"), _dict(told, "flags")
    model = _first(told, "models")
    timed = [row for row in record.rows if row["state"] == 0]
    samples = _while_timed(record)
    return Known(
        rank=record.rank,
        steps=unprofiled_steps(record.rows),
        num_steps=len(record.rows),
        loader=_loader(told),
        cores=_cores(machine),
        local_ranks=_int(told.get("local_world_size")),
        threads=_int(machine.get("num_threads")),
        cudnn_benchmark=_bool(flags.get("cudnn_benchmark")),
        tf32=_bool(flags.get("matmul_tf32")),
        optimizers=tuple(_optimizer(one) for one in _list(told, "optimizers")),
        ddp=_plain(_first(told, "ddp")),
        model=_text(model.get("class")),
        num_parameters=_int(model.get("num_params")),
        device=_device(samples),
        has_device=bool(machine.get("devices")),
        cores_used=_median([_sum(one, "cpu_user_cores", "cpu_sys_cores", "children_cores") for one in samples]),
        busiest_worker_cores=_median([_number(one.get("busiest_child_cores")) for one in samples]),
        held_back_share=_median([_number(one.get("cgroup_throttled_s_per_s")) for one in samples]),
        save_ns=_total(timed, "save_ns"),
        gc_ns=_total(timed, "gc_ns"),
        timed_ns=_total(timed, "dur_ns"),
        num_epochs=sum(event.get("kind") == "epoch" for event in record.events),
        problem=record.problem,
    )


def _while_timed(record: RankRecord) -> list[Mapping[str, Any]]:
    """Samples taken while no profiler was attached; all of them where none was."""
    spans = [(row["end_ns"] or 0) for row in record.rows if row["state"] == 2]
    outside = [s for s in record.samples if not spans or not spans[0] <= (_int(s.get("at_ns")) or 0) <= spans[-1]]
    return list(outside[1:] or outside)


def _loader(told: Mapping[str, Any]) -> LoaderKnobs | None:
    feeding = [one for one in _list(told, "loaders") if one.get("is_feeding")] or _list(told, "loaders")[:1]
    iterator = _dict(told, "loader_iter")
    if not iterator and not feeding:
        return None
    knobs = {**(feeding[0] if feeding else {}), **{k: v for k, v in iterator.items() if v is not None}}
    return LoaderKnobs(
        num_workers=_int(knobs.get("num_workers")),
        pin_memory=_bool(knobs.get("pin_memory")),
        prefetch_factor=_int(knobs.get("prefetch_factor")),
        persistent_workers=_bool(knobs.get("persistent_workers")),
        batch_size=_int(knobs.get("batch_size")),
    )


def _cores(machine: Mapping[str, Any]) -> float | None:
    """What the process may use: its affinity or its container's quota, whichever is less."""
    told = [_number(machine.get(name)) for name in ("cpu_affinity", "cpu_quota")]
    least = [value for value in told if value is not None and math.isfinite(value)]
    return min(least) if least else _median([_number(machine.get("cpu_count"))])


def _device(samples: Sequence[Mapping[str, Any]]) -> DeviceSample | None:
    """The rank's first device in use."""
    seen = [devices[0] for one in samples if (devices := _list(one, "devices"))]
    if not seen:
        return None
    reasons = Counter(r for one in seen for r in set(map(str, one.get("throttle_reasons") or ())) if r not in IDLE_REASONS)
    told = any("throttle_reasons" in one for one in seen)

    def middle(name: str) -> float | None:
        return _median([_number(one.get(name)) for one in seen])

    busy = middle("gpu_util_percent")
    return DeviceSample(
        busy_share=None if busy is None or not 0 <= busy <= 100 else busy / 100,
        sm_clock_mhz=middle("sm_clock_mhz"),
        max_sm_clock_mhz=middle("max_sm_clock_mhz"),
        power_w=middle("gpu_power_w"),
        power_limit_w=middle("gpu_power_limit_w"),
        temperature_c=middle("gpu_temperature_c"),
        throttled_share={name: num / len(seen) for name, num in reasons.items()} if told else None,
    )


def _optimizer(one: Mapping[str, Any]) -> str:
    how = [name for name in ("fused", "foreach", "capturable") if one.get(name) is True]
    return str(one.get("class")) + (f" ({', '.join(how)})" if how else "")


def _total(rows: Sequence[Mapping[str, int | None]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _sum(one: Mapping[str, Any], *names: str) -> float | None:
    told = [value for name in names if (value := _number(one.get(name))) is not None]
    return sum(told) if told else None


def _median(values: Sequence[float | None]) -> float | None:
    """Of what was measured: a number that is not finite, or a sum of such, was not."""
    told = [value for value in values if value is not None and math.isfinite(value)]
    return _measured(statistics.median(told)) if told else None


def _measured(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _dict(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = told.get(name)
    return value if isinstance(value, dict) else {}


def _list(told: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = told.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _first(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    rows = _list(told, name)
    return rows[0] if rows else {}


def _plain(told: Mapping[str, Any]) -> dict[str, float | bool | str | None] | None:
    kept = {k: v for k, v in told.items() if v is None or isinstance(v, bool | int | float | str)}
    return {k: _measured(v) if isinstance(v, float) else v for k, v in kept.items()} or None


def _number(value: Any) -> float | None:
    return finite(value)


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
