"""From what a run folder holds to what is known of the run.
A value of the wrong kind counts as not recorded.
Network ports are known from what the ranks sampled of /sys/class/infiniband.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from stepscope.analyses.run.host_growth import host_growth
from stepscope.analyses.run.own_time import own_times
from stepscope.analyses.run.stalls import saves_of, stalls_of
from stepscope.analyses.run.step_extras import within_epochs
from stepscope.analyses.steps.unprofiled import unprofiled_steps
from stepscope.core.memory import RecordedFailure
from stepscope.core.recordings.memory import CATEGORIES
from stepscope.core.recordings.system import PortSeries
from stepscope.core.run import DeviceSample, LoaderKnobs, RankMetadata, RunFacts
from stepscope.protocol.port_counters import counter_of
from stepscope.protocol.run_folder import OWN_PROFILER, stock_steps
from stepscope.protocol.untrusted import as_object, as_text, finite, objects_at, whole
from stepscope.readers.run_folder.folder import RankRecord, RunRecord
from stepscope.readers.run_folder.port_samples import PortSamples

MAX_NAME = 80
IDLE_REASONS = ("gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost")
"""Reasons to run slower that nothing is wrong with."""


def run_facts(record: RunRecord) -> RunFacts:
    """The run as a whole."""
    command, code = record.metadata.get("command"), record.metadata.get("exit_code")
    failures = (recorded_failure(notes) for notes in record.failures)
    return RunFacts(
        path=str(record.path),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        exit_code=code if isinstance(code, int) else None,
        ranks=_with_other_cores(
            record, _with_own_times(record, [rank_metadata(rank) for rank in record.ranks])
        ),
        ports=run_ports(record),
        failures=tuple(failure for failure in failures if failure is not None),
    )


def recorded_failure(notes: Mapping[str, Any]) -> RecordedFailure | None:
    """Memory that ran out in a process; None where what it wrote is not whole."""
    message = as_text(notes.get("message"))
    if message is None:
        return None
    sizes = {name: whole(size, low=0) for name, size in as_object(notes.get("sizes")).items()}
    return RecordedFailure(
        rank=whole(notes.get("rank"), low=0),
        message=message,
        where=as_text(notes.get("where")),
        operator=as_text(notes.get("operator")),
        phase=as_text(notes.get("phase")),
        step=whole(notes.get("step"), low=0),
        capacity_bytes=whole(notes.get("capacity_bytes"), low=0),
        held_bytes=whole(notes.get("held_bytes"), low=0),
        reserved_bytes=whole(notes.get("reserved_bytes"), low=0),
        most_held_bytes=whole(notes.get("most_held_bytes"), low=0),
        passed_bytes=whole(notes.get("passed_bytes"), low=0),
        sizes={name: size for name, size in sizes.items() if size and name in CATEGORIES},
        trained_bytes=whole(notes.get("trained_bytes"), low=0),
        optimizer=as_text(notes.get("optimizer")),
        is_fused=notes["is_fused"] if isinstance(notes.get("is_fused"), bool) else None,
        block=whole(notes.get("block"), low=0),
        num_blocks=whole(notes.get("num_blocks"), low=1),
        num_rows=whole(notes.get("num_rows"), low=0),
        element_bytes=whole(notes.get("element_bytes"), low=1),
        input_bytes=whole(notes.get("input_bytes"), low=0),
        head_features=whole(notes.get("head_features"), low=1),
        head_weight_bytes=whole(notes.get("head_weight_bytes"), low=0),
    )


def _with_other_cores(record: RunRecord, ranks: Sequence[RankMetadata]) -> tuple[RankMetadata, ...]:
    """Add the cores of its machine that are in use, less those of all ranks there."""
    used: defaultdict[str, float] = defaultdict(float)
    for mine, rank in zip(record.ranks, ranks, strict=True):
        used[str(mine.metadata.get("host"))] += rank.cores_used or 0.0
    return tuple(
        structs.replace(rank, other_cores=_other_cores(mine, used[str(mine.metadata.get("host"))]))
        for mine, rank in zip(record.ranks, ranks, strict=True)
    )


def _other_cores(record: RankRecord, used: float) -> float | None:
    cores = finite(as_object(record.metadata.get("machine")).get("cpu_count"))
    busy = _median([finite(s.get("machine_cpu_share")) for s in _while_timed(record)])
    if cores is None or busy is None or used <= 0:
        return None
    return max(busy * cores - used, 0.0)


def _with_own_times(record: RunRecord, ranks: Sequence[RankMetadata]) -> tuple[RankMetadata, ...]:
    """Add what each took less its waits, where gradients are exchanged by the hosts."""
    if any(rank.has_device or rank.ddp is None for rank in ranks):
        return tuple(ranks)
    own = own_times({rank.rank: rank.rows for rank in record.ranks})
    return tuple(structs.replace(rank, own=own.get(rank.rank)) for rank in ranks)


def rank_metadata(record: RankRecord) -> RankMetadata:
    """What one rank recorded of itself."""
    recorded = record.metadata
    machine, flags = as_object(recorded.get("machine")), as_object(recorded.get("flags"))
    model = _first(recorded, "models")
    timed = [row for row in record.rows if row["state"] == 0]
    samples, loader = _while_timed(record), _loader(recorded)
    steps = unprofiled_steps(within_epochs(record), _stock(loader))
    return RankMetadata(
        rank=record.rank,
        steps=steps,
        num_steps=len(record.rows),
        loader=loader,
        cores=_cores(machine),
        machine_cores=finite(machine.get("cpu_count")),
        local_ranks=whole(recorded.get("local_world_size")),
        threads=whole(machine.get("num_threads")),
        cudnn_benchmark=_bool(flags.get("cudnn_benchmark")),
        tf32=_bool(flags.get("matmul_tf32")),
        optimizers=tuple(_optimizer(options) for options in objects_at(recorded, "optimizers")),
        made_at=_made_at(recorded),
        ddp=_plain(_first(recorded, "ddp")),
        model=as_text(model.get("class")),
        # Of a model that was walked in part, so many were not counted.
        num_parameters=None if model.get("is_whole") is False else whole(model.get("num_params")),
        device=_device(samples),
        has_device=bool(machine.get("devices")),
        device_id=_device_id(machine),
        cores_used=_median(
            [
                _sum(sample, "cpu_user_cores", "cpu_sys_cores", "children_cores")
                for sample in samples
            ]
        ),
        children_cores=_middle(samples, "children_cores"),
        worker_bytes=_median([_worker_bytes(sample) for sample in samples]),
        own_bytes=_middle(samples, "private_bytes"),
        growth=host_growth(record.samples),
        num_given_up=_last(record.samples, "dynamo_given_up"),
        num_recompiles=_last(record.samples, "dynamo_recompiles"),
        num_windows=len(record.windows),
        num_kept_off=sum(
            event.get("kind") == "window" and event.get("problem") in OWN_PROFILER
            for event in record.events
        ),
        memory_available_bytes=_middle(samples, "memory_available_bytes"),
        busiest_worker_cores=_middle(samples, "busiest_child_cores"),
        held_back_share=_share_held_back(samples),
        queued_share=_middle(samples, "main_thread_queued_share"),
        pressure_share=_middle(samples, "cpu_pressure_share"),
        stalls=stalls_of(record, steps),
        saves=saves_of(record.events),
        save_ns=_total(timed, "save_ns"),
        gc_ns=_total(timed, "gc_ns"),
        timed_ns=_total(timed, "dur_ns"),
        num_epochs=sum(event.get("kind") == "epoch" for event in record.events),
        problem=record.problem,
    )


def _device_id(machine: Mapping[str, Any]) -> str | None:
    used = (each for each in objects_at(machine, "devices") if each.get("is_used") is True)
    return next((as_text(each.get("uuid")) for each in used), None)


def _while_timed(record: RankRecord) -> list[Mapping[str, Any]]:
    """Samples taken while no profiler was attached; all of them where none was."""
    spans = [(row["end_ns"] or 0) for row in record.rows if row["state"] == 2]
    outside = [
        s
        for s in record.samples
        if not spans or not spans[0] <= (whole(s.get("at_ns")) or 0) <= spans[-1]
    ]
    return list(outside[1:] or outside)


def _stock(loader: LoaderKnobs | None) -> int:
    """Steps that batches made while a job starts may feed."""
    if loader is None or not loader.num_workers:
        return 0
    return stock_steps(loader.num_workers, loader.prefetch_factor)


def _last(samples: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """A count since the process began, at its last sample."""
    return next((num for s in reversed(samples) if (num := whole(s.get(name))) is not None), None)


def _middle(samples: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return _median([finite(sample.get(name)) for sample in samples])


def _share_held_back(samples: Sequence[Mapping[str, Any]]) -> float | None:
    """The kernel adds up what each core was held back for: one is all the time there is."""
    per_s = _middle(samples, "cgroup_throttled_s_per_s")
    return None if per_s is None else min(per_s, 1.0)


def _worker_bytes(sample: Mapping[str, Any]) -> float | None:
    num, size = whole(sample.get("num_children")), finite(sample.get("children_private_bytes"))
    return size / num if num and size else None


def _loader(recorded: Mapping[str, Any]) -> LoaderKnobs | None:
    feeding = _feeding(recorded)
    iterator, batch = as_object(recorded.get("loader_iter")), as_object(recorded.get("batch"))
    if not iterator and not feeding:
        return None
    if iterator.get("is_bare"):
        # Loaders that there are feed something else.
        feeding = []
    knobs = {
        **(feeding[0] if feeding else {}),
        **{k: v for k, v in iterator.items() if v is not None},
    }
    return LoaderKnobs(
        num_workers=whole(knobs.get("num_workers")),
        pin_memory=_bool(knobs.get("pin_memory")),
        prefetch_factor=whole(knobs.get("prefetch_factor")),
        persistent_workers=_bool(knobs.get("persistent_workers")),
        batch_size=whole(knobs.get("batch_size")),
        is_iterable=_bool(knobs.get("is_iterable")),
        splits_itself=_bool(knobs.get("splits_itself")),
        is_bare=_bool(knobs.get("is_bare")),
        batch_tensors=whole(batch.get("num_tensors")),
        batch_bytes=whole(batch.get("size_bytes")),
    )


def _feeding(recorded: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    loaders = objects_at(recorded, "loaders")
    return [loader for loader in loaders if loader.get("is_feeding")] or list(loaders[:1])


def _made_at(recorded: Mapping[str, Any]) -> dict[str, str]:
    """Line that made each class that was made once; equal ones are one row with their number."""
    made = [*_feeding(recorded)[:1], *objects_at(recorded, "optimizers")]
    names = Counter(as_text(each.get("class")) for each in made)
    return {
        name: line
        for each in made
        if (name := as_text(each.get("class"))) and (line := as_text(each.get("made_at")))
        if names[name] == 1 and each.get("num", 1) == 1
    }


def _cores(machine: Mapping[str, Any]) -> float | None:
    """What the process may use: its affinity or its container's quota, whichever is less."""
    limits = [finite(machine.get(name)) for name in ("cpu_affinity", "cpu_quota")]
    least = [value for value in limits if value is not None and math.isfinite(value)]
    return min(least) if least else _median([finite(machine.get("cpu_count"))])


def _device(samples: Sequence[Mapping[str, Any]]) -> DeviceSample | None:
    """The rank's first device in use."""
    seen = [devices[0] for sample in samples if (devices := objects_at(sample, "devices"))]
    if not seen:
        return None
    reasons: Counter[str] = Counter()
    for device in seen:
        reasons.update(set(map(str, device.get("throttle_reasons") or ())).difference(IDLE_REASONS))
    throttled = None
    if any("throttle_reasons" in device for device in seen):
        throttled = {name: num / len(seen) for name, num in reasons.items()}

    def middle(name: str) -> float | None:
        return _median([finite(device.get(name)) for device in seen])

    busy = middle("gpu_util_percent")
    return DeviceSample(
        busy_share=None if busy is None or not 0 <= busy <= 100 else busy / 100,
        sm_clock_mhz=middle("sm_clock_mhz"),
        max_sm_clock_mhz=middle("max_sm_clock_mhz"),
        power_w=middle("gpu_power_w"),
        power_limit_w=middle("gpu_power_limit_w"),
        temperature_c=middle("gpu_temperature_c"),
        throttled_share=throttled,
    )


def _optimizer(options: Mapping[str, Any]) -> str:
    how = [name for name in ("fused", "foreach", "capturable") if options.get(name) is True]
    return str(options.get("class")) + (f" ({', '.join(how)})" if how else "")


def _total(rows: Sequence[Mapping[str, int | None]], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _sum(sample: Mapping[str, Any], *names: str) -> float | None:
    values = [value for name in names if (value := finite(sample.get(name))) is not None]
    return sum(values) if values else None


def _median(values: Sequence[float | None]) -> float | None:
    """Median of what was measured: a number that is not finite, or a sum of such, was not."""
    measured = [value for value in values if value is not None and math.isfinite(value)]
    return _measured(statistics.median(measured)) if measured else None


def _measured(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _first(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    rows = objects_at(values, name)
    return rows[0] if rows else {}


def _plain(values: Mapping[str, Any]) -> dict[str, float | bool | str | None] | None:
    kept = {k: v for k, v in values.items() if v is None or isinstance(v, bool | int | float | str)}
    return {k: _measured(v) if isinstance(v, float) else v for k, v in kept.items()} or None


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def run_ports(run: RunRecord) -> tuple[PortSeries, ...]:
    """Each port of each machine; one rank of a machine samples them."""
    samples = PortSamples()
    hosts = {str(rank.metadata.get("host")) for rank in run.ranks}
    for rank in run.ranks:
        host = f"{str(rank.metadata.get('host'))[:MAX_NAME]} " if len(hosts) > 1 else ""
        for sample in rank.samples:
            ports = sample.get("ib_ports")
            at_ns = finite(sample.get("at_ns"))
            if not isinstance(ports, dict):
                continue
            for name, counts in ports.items():
                if isinstance(name, str) and isinstance(counts, dict):
                    time_s = None if at_ns is None else at_ns / 1e9
                    samples.add(f"{host}{name[:MAX_NAME]}", _known(counts), time_s)
    return samples.series()


def _known(counts: Mapping[str, Any]) -> dict[str, int]:
    """Counts by our names."""
    known: dict[str, int] = {}
    for word, value in counts.items():
        counter, number = counter_of(word), whole(value, 0)
        if counter is not None and number is not None:
            name, scale = counter
            known[name] = max(known.get(name, 0), number * scale)
    return known
