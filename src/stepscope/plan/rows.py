"""Published results, a row each: what was trained on what, without what was measured.

See docs/planner.md for the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.errors import InputError, StepscopeError
from stepscope.plan.estimate import Estimates, estimate
from stepscope.plan.framework import MEGATRON, Framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import RECOMPUTE, Layout, Layouts
from stepscope.plan.memory import memory as memory_of
from stepscope.plan.model import Model, model_flops_per_token
from stepscope.plan.parameters import is_selective_cheap, parameters
from stepscope.plan.ranges import ranges_of
from stepscope.plan.row_parts import UnsupportedError, cluster_of, framework_of, model_of
from stepscope.protocol.untrusted import open_regular, parse_json

MAX_BYTES = 1 << 20
USUAL_SEQ = 1024
GIB = 2**30
MAX_FILL = 1.08
"""Share of a device's memory planned for a layout that ran: plans come out too large too."""
MAX_COUNT = 10**7


MEMORY_OF = ("allocated", "reserved", "device", "states and activations", "first stage")
"""What a row's peak may be of: tensors, what the allocator took of the device (taken where nothing
is said), all that the device shows, sums on paper, and what the allocator of the first stage took,
whose rank 0 many jobs print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """One published result, read."""

    id: str
    job: TrainingJob
    layouts: Layouts
    """One, or several where not all of it was published."""
    memory_of: str = "reserved"
    """One of MEMORY_OF: what a peak is of."""
    is_recompute_stated: bool = True
    is_zero_stated: bool = True


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, one JSON object to a line."""
    try:
        with open_regular(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), 1):
                if len(line) > MAX_BYTES:
                    raise InputError(f"{path}, line {number}: longer than a row can be")
                if not line.strip():
                    continue
                try:
                    row = parse_json(line, is_strict=True)
                except ValueError:
                    raise InputError(
                        f"{path}, line {number}: not JSON; each line must be one row"
                    ) from None
                if not isinstance(row, dict):
                    raise InputError(
                        f"{path}, line {number}: not an object; each line must be one row"
                    )
                yield row
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None


def _recompute(word: Any) -> str | None:
    text = str(word or "").casefold()
    if not text:
        return None
    return next((kind for kind in ("selective", "full", "none") if kind in text), "none")


def _recompute_kinds(stated: dict[str, Any], framework: Framework) -> tuple[str, ...]:
    """What a row may have recomputed: what it says, or what its framework's runs do."""
    kind = _recompute(stated.get("recompute")) or framework.usual_recompute
    if kind is None and framework.name == MEGATRON.name:
        # Before 2022 there was all or nothing, and every published run used it.
        kind = "full"
    return RECOMPUTE if kind is None else (kind,)


def _precision(word: Any, peaks: Any) -> str:
    text = str(word or "").casefold().replace("bfloat", "bf").replace("float", "fp")
    for name in ("fp8", "fp4", "bf16", "fp16", "tf32", "fp32"):
        if name in text:
            if name == "fp4":
                return "fp4" if "fp4" in peaks else "fp8"
            return name
    return "bf16" if "bf16" in peaks and "fp8" in peaks else "fp16"


def published_result(row: dict[str, Any]) -> PublishedResult:
    """A row as a job and its layouts.

    What was not published is chosen as a user would: the fastest that fits.
    """
    stated = row.get("layout") or {}
    model, cluster = model_of(row), cluster_of(row)
    framework, has_flash = framework_of(row)
    seq, batch = int(row.get("seq_len") or USUAL_SEQ), int(row.get("global_batch") or 1)
    num = cluster.num_devices
    tp, pp, cp, ep = (int(stated.get(name) or 1) for name in ("tp", "pp", "cp", "ep"))
    dp = int(stated.get("dp") or max(1, num // (tp * pp * cp)))
    _check_widths(row, {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp})
    num_gpus = int((row.get("cluster") or {}).get("num_gpus") or 0)
    if 0 < num_gpus < tp * pp * cp * dp and num_gpus % (tp * pp * cp) == 0:
        # More ranks than there were devices: those are counted, data ranks are often copied from
        # another line.
        dp = num_gpus // (tp * pp * cp)
    if "tp" not in stated and "pp" not in stated:
        # The product alone is known: tensor ranks fill a node before stages come.
        tp = min(max(1, num // (dp * cp)), cluster.devices_per_node)
        pp = max(1, num // (dp * cp * tp))
    zero = stated.get("zero_stage")
    if str(stated.get("fsdp") or "off").casefold() not in ("off", "false", "no", "none"):
        zero = 3
    if zero is None:
        zero = 1 if framework.name == "megatron-core" else 0
    is_sequence = stated.get("sequence_parallel")
    if is_sequence is None:
        is_sequence = tp > 1 and framework.name in ("megatron-core", "nanotron", "torchtitan")
    flash = stated.get("flash_attention")
    flash = has_flash if flash is None else bool(flash)
    job = TrainingJob(
        model=model,
        cluster=cluster,
        seq_len=seq,
        global_batch=batch,
        precision=_precision(stated.get("precision"), cluster.peak_flops),
        framework=framework,
        is_adapter="lora" in str(row.get("note", "")).casefold(),
    )
    schedule = str(stated.get("pp_schedule") or "1f1b").casefold()
    base: dict[str, Any] = {
        "tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp, "zero_stage": int(zero),
        "is_sequence_parallel": bool(is_sequence) and tp > 1, "is_flash": flash,
        "schedule": "gpipe" if "gpipe" in schedule or "afab" in schedule else "1f1b",
    }  # fmt: skip
    layouts = []
    for micro in _micro_batches(stated, batch, dp):
        accum = stated.get("grad_accum")
        num_micro = int(accum) if accum else max(1, batch // (dp * micro))
        for vpp in _virtual(stated, row, model, pp):
            layouts += [
                Layout(**base, micro_batch=micro, num_micro=num_micro, vpp=vpp, recompute=recompute)
                for recompute in _recompute_kinds(stated, framework)
            ]
    is_stated = (
        framework.name == MEGATRON.name
        or framework.usual_recompute is not None
        or _recompute(stated.get("recompute")) is not None
    )
    return PublishedResult(
        id=str(row.get("id", "?")),
        job=job,
        layouts=Layouts.of(layouts),
        memory_of=_memory_of(row, framework),
        is_recompute_stated=is_stated,
        is_zero_stated=stated.get("zero_stage") is not None or int(zero) > 0,
    )


def _memory_of(row: dict[str, Any], framework: Framework) -> str:
    word = row.get("memory_of")
    kind = framework.logged_memory if word is None else str(word)
    if kind not in MEMORY_OF:
        raise UnsupportedError(f"memory_of is one of {', '.join(MEMORY_OF)}, not {kind[:40]!a}")
    return kind


def memory_bytes(row: PublishedResult, estimates: Estimates, index: int) -> float:
    """Bytes of the layout meant, as the row's peak is counted."""
    memory, layouts = estimates.memory, estimates.layouts
    if row.memory_of == "first stage":
        held = parameters(estimates.job, layouts)
        peak = memory_of(estimates.job, layouts, held, is_first=True).reserved
    elif row.memory_of == "states and activations":
        peak = memory.weights + memory.gradients + memory.optimizer + memory.activations
    elif row.memory_of == "device":
        peak = memory.total
    else:
        peak = memory.allocated if row.memory_of == "allocated" else memory.reserved
    return float(np.broadcast_to(peak, len(layouts))[index])


def _check_widths(row: dict[str, Any], widths: dict[str, int]) -> None:
    stated, cluster = row.get("layout") or {}, row.get("cluster") or {}
    numbers = {
        **widths,
        "seq_len": row.get("seq_len", 1),
        "global_batch": row.get("global_batch", 1),
    }
    numbers |= {
        name: stated[name]
        for name in ("micro_batch", "grad_accum", "vpp")
        if stated.get(name) is not None
    }
    numbers |= {
        name: cluster[name]
        for name in ("num_gpus", "gpus_per_node")
        if cluster.get(name) is not None
    }
    for name, value in numbers.items():
        if not 1 <= float(value) <= MAX_COUNT:
            raise UnsupportedError(f"{name} is {value!r}, and must be from 1 to {MAX_COUNT}")
    if stated.get("zero_stage") not in (None, 0, 1, 2, 3):
        raise UnsupportedError(f"zero_stage is {stated['zero_stage']!r}, and there are 0 to 3")


def _micro_batches(stated: dict[str, Any], batch: int, dp: int) -> list[int]:
    if stated.get("micro_batch"):
        return [int(stated["micro_batch"])]
    return [size for size in (1, 2, 4, 8, 16) if batch % (dp * size) == 0] or [1]


def _virtual(stated: dict[str, Any], row: dict[str, Any], model: Model, pp: int) -> list[int]:
    if stated.get("vpp"):
        return [int(stated["vpp"])]
    if pp > 1 and "interleaved" in str(stated.get("pp_schedule", "")).casefold():
        return [v for v in (2, 3, 4) if model.layers % (pp * v) == 0] or [2]
    if pp > 1 and (
        "interleaved" in str(row.get("framework", "")).casefold() or not stated.get("micro_batch")
    ):
        return [v for v in (1, 2, 3, 4) if model.layers % (pp * v) == 0] or [1]
    return [1]


def best_of(row: PublishedResult) -> tuple[Estimates, int]:
    """The estimates and the index of the layout meant.

    Of several the fastest that fits, else the smallest.
    """
    estimates = estimate(row.job, row.layouts)
    # What ran did fit: what we take for a little too large may be it.
    fits = np.broadcast_to(
        estimates.memory_bytes <= MAX_FILL * row.job.cluster.memory_bytes, len(row.layouts)
    )
    may_be = np.ones(len(row.layouts), dtype=bool)
    if not row.is_recompute_stated and is_selective_cheap(row.job):
        # None of the published recipes for mixtures repeats whole layers: they recompute or offload
        # what is cheap to repeat.
        may_be = row.layouts.recompute < RECOMPUTE.index("full")
    step = np.broadcast_to(
        estimates.step_s / (row.layouts.num_micro * row.layouts.micro_batch), len(row.layouts)
    )
    if (fits & may_be).any():
        return estimates, int(np.argmin(np.where(fits & may_be, step, np.inf)))
    return estimates, int(np.argmin(np.where(may_be, estimates.memory_bytes, np.inf)))


def recomputed_share(row: PublishedResult, estimates: Estimates, index: int) -> float:
    """The share of layers that are recomputed whole.

    All, or only as many as memory needs where no number was published.
    """
    layouts = row.layouts
    if row.is_recompute_stated or RECOMPUTE[int(layouts.recompute[index])] != "full":
        return 1.0
    same = (layouts.micro_batch == layouts.micro_batch[index]) & (layouts.vpp == layouts.vpp[index])
    [lesser] = np.flatnonzero(same & (layouts.recompute == RECOMPUTE.index("selective")))
    memory_bytes = np.broadcast_to(estimates.memory_bytes, len(layouts))
    over = memory_bytes[lesser] - row.job.cluster.memory_bytes
    return float(np.clip(over / max(memory_bytes[lesser] - memory_bytes[index], 1.0), 0.0, 1.0))


def _fits(row: PublishedResult, estimates: Estimates, index: int) -> bool:
    """Whether the layout meant fits, or any of those that it may have been: one that says no ZeRO
    stage may have had the first, where its framework has it."""
    may_be = [estimates.fits]
    if not row.is_zero_stated and 1 in row.job.framework.zero_stages:
        layouts = replace(row.layouts, zero_stage=np.ones_like(row.layouts.zero_stage))
        may_be.append(estimate(row.job, layouts).fits)
    fits = np.any([np.broadcast_to(each, len(estimates.layouts)) for each in may_be], axis=0)
    return bool(fits[index] if row.is_recompute_stated else fits.any())


def predict(row: dict[str, Any]) -> dict[str, Any]:
    """One line of `stepscope plan --rows`."""
    try:
        result = published_result(row)
        estimates, index = best_of(result)
    except StepscopeError as problem:
        return {"id": row.get("id"), "unsupported": str(problem)}
    except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError) as problem:
        return {
            "id": row.get("id"),
            "unsupported": f"a field is not what it should be: {str(problem)[:200]}",
        }
    job = result.job
    layout = estimates.layouts.layout(index)
    share = recomputed_share(result, estimates, index)
    again_s = float(np.broadcast_to(estimates.times.recompute, len(estimates.layouts))[index]) * (
        1 - share
    )
    rate = float(
        estimates.tokens_per_s_per_device[index]
        * estimates.step_s[index]
        / (estimates.step_s[index] - again_s)
    )
    flops = rate * model_flops_per_token(job.model, job.seq_len)
    again = share / 3 if layout.recompute == "full" else 0.0
    peak = job.cluster.peak_flops[job.precision]
    step_s = job.tokens / (rate * layout.num_devices)
    memory_gb = memory_bytes(result, estimates, index) / GIB
    ranges = ranges_of(job)
    step, memory = ranges.step.around(step_s), ranges.memory.around(memory_gb)
    return {
        "id": row.get("id"),
        "step_s": step_s,
        "tokens_per_s_per_gpu": rate,
        "tflops_per_gpu": flops / 1e12,
        "mfu": flops / peak,
        "hfu": flops * (1 + again) / peak,
        "memory_gb": memory_gb,
        "fits": _fits(result, estimates, index),
        "step_s_low": step[0],
        "step_s_high": step[1],
        "memory_gb_low": memory[0],
        "memory_gb_high": memory[1],
    }
