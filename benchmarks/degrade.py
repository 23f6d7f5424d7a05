"""Takes from a Kineto trace what a recording may lack, so that what is claimed of the rest can be
checked.

A degradation is a function from a trace (the decoded JSON object) to another one; the original is
left as it was. Each imitates what some run really records: `activities=[CUDA]` has no operators, a
schedule that begins mid-step has kernels without launches, CUPTI drops events when its buffers are
full, a captured step has one launch for all its kernels, ROCm names everything differently (the
names are those of the MI300X and MI250 traces that TraceLens and HTA publish).
"""

from __future__ import annotations

import random
import re
from bisect import bisect
from collections.abc import Callable, Iterable
from typing import Any

Event = dict[str, Any]
TraceJson = dict[str, Any]

DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
MARKS = frozenset({"user_annotation", "gpu_user_annotation"})
INPUTS = frozenset({"Input Dims", "Input type", "Input Strides", "Concrete Inputs"})
LOST_ONE_IN = 10
SEED = 20

HIP_CALLS = {
    "cudaLaunchKernel": "hipLaunchKernel",
    "cudaLaunchKernelExC": "hipExtLaunchKernel",
    "cuLaunchKernel": "hipModuleLaunchKernel",
    "cuLaunchKernelEx": "hipExtModuleLaunchKernel",
    "cudaHostAlloc": "hipHostMalloc",
    "cudaFreeHost": "hipHostFree",
}
"""Calls whose HIP counterpart is not the same word after the prefix."""

MI300X = {
    "name": "AMD Instinct MI300X",
    "totalGlobalMem": 206141652992,
    "computeMajor": 9,
    "computeMinor": 4,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536,
    "warpSize": 64,
    "sharedMemPerBlock": 65536,
    "numSms": 304,
    "maxSharedMemoryPerMultiProcessor": 65536,
}

_LIBRARY_GEMM = re.compile(r"nvjet|xmma_gemm|cutlass|gemm|gemv|splitKreduce|cublas", re.IGNORECASE)
_LIBRARY_CONV = re.compile(
    r"cudnn|xmma_(fprop|dgrad|wgrad)|implicit_convolve|conv2d|scudnn|winograd", re.IGNORECASE
)
_LIBRARY_ATTENTION = re.compile(r"flash|fmha|cudnn_generated_fort_native_sdpa", re.IGNORECASE)
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw", re.IGNORECASE)


def no_shapes(trace: TraceJson) -> TraceJson:
    """record_shapes=False."""
    return _with(trace, (_less(e, INPUTS) for e in _events(trace)), without=("record_shapes",))


def no_stacks(trace: TraceJson) -> TraceJson:
    """with_stack=False."""
    return _kept(
        trace, lambda e: e.get("cat") != "python_function", without=("with_stack", "with_modules")
    )


def no_marks(trace: TraceJson) -> TraceJson:
    """No profiler.step(), no record_function, an optimizer that marks nothing."""
    return _kept(trace, lambda e: e.get("cat") not in MARKS)


def no_host_operators(trace: TraceJson) -> TraceJson:
    """activities=[CUDA]: kernels and the runtime calls that launched them."""
    kept = (
        _less(e, {"External id"})
        for e in _events(trace)
        if e.get("cat") in DEVICE_WORK | RUNTIME or e.get("ph") == "M"
    )
    return _with(trace, kept, without=("record_shapes", "with_stack", "with_modules"))


def kernels_only(trace: TraceJson) -> TraceJson:
    """Nothing of the host: as a device-side recorder writes it."""
    kept = (
        _less(e, {"External id"})
        for e in _events(trace)
        if e.get("cat") in DEVICE_WORK or e.get("ph") == "M"
    )
    return _with(trace, kept, without=("record_shapes", "with_stack", "with_modules"))


def cpu_only(trace: TraceJson) -> TraceJson:
    """activities=[CPU] of a run that did use a device."""
    device = DEVICE_WORK | RUNTIME | {"gpu_user_annotation", "cuda_sync", "ac2g"}
    return _kept(trace, lambda e: e.get("cat") not in device)


def late_start(trace: TraceJson) -> TraceJson:
    """The recording begins halfway: mid-step, with work under way whose launch was not seen."""
    timed = [e for e in _events(trace) if e.get("ph") == "X" and e.get("cat") != "Trace"]
    begin = min(e["ts"] for e in timed)
    middle = (begin + max(e["ts"] + e["dur"] for e in timed)) / 2
    return _kept(trace, lambda e: e.get("ph") != "X" or e["ts"] >= middle)


def lost_kernels(trace: TraceJson) -> TraceJson:
    """Device events dropped at random, one in ten."""
    return _lossy(trace, DEVICE_WORK)


def lost_launches(trace: TraceJson) -> TraceJson:
    """Runtime calls dropped at random, one in ten."""
    return _lossy(trace, RUNTIME)


def no_device(trace: TraceJson) -> TraceJson:
    """Nothing said about the device."""
    return {**trace, "deviceProperties": []}


def one_step(trace: TraceJson) -> TraceJson:
    """active=1: one ProfilerStep, the work it launched, and what was still running of the step
    before."""
    steps = _steps(trace)
    if not steps:
        return trace
    low, high = steps[len(steps) // 2]
    later = {_correlation(e) for e in _events(trace) if e.get("cat") in RUNTIME and e["ts"] >= high}
    device = DEVICE_WORK | {"gpu_user_annotation"}

    def keep(event: Event) -> bool:
        if event.get("ph") != "X":
            return True
        return event["ts"] >= low and (
            _correlation(event) not in later if event.get("cat") in device else event["ts"] < high
        )

    return _kept(trace, keep)


def graphs(trace: TraceJson) -> TraceJson:
    """Each step captured in pieces: one cudaGraphLaunch for all the kernels between two other
    calls, no operators around it.

    The launch takes as long as the launches it stands for, so that who waits for whom stays as it
    was.
    """
    steps, events = _steps(trace), _events(trace)
    of_kernels = {_correlation(e) for e in events if e.get("cat") in ("kernel", "gpu_memset")} - {
        None
    }
    piece_of: dict[Any, int] = {}
    pieces: list[Event] = []
    last = None
    for call in sorted(
        (e for e in events if e.get("cat") in RUNTIME and _is_work(e)), key=lambda e: e["ts"]
    ):
        step = next((i for i, (low, high) in enumerate(steps) if low <= call["ts"] < high), None)
        if _correlation(call) not in of_kernels or step is None:
            last = None
            continue
        if last != step:
            pieces.append(
                {**_less(call, {"External id"}), "name": "cudaGraphLaunch", "cat": "cuda_runtime"}
            )
        pieces[-1]["dur"] = call["ts"] + call["dur"] - pieces[-1]["ts"]
        piece_of[_correlation(call)] = len(pieces) - 1
        last = step
    spans = sorted((p["ts"], p["ts"] + p["dur"]) for p in pieces)
    return _with(
        trace,
        [
            *(e for e in (_in_graph(e, piece_of, pieces, spans) for e in events) if e is not None),
            *pieces,
        ],
    )


def _in_graph(
    event: Event, piece_of: dict[Any, int], pieces: list[Event], spans: list[tuple[float, float]]
) -> Event | None:
    """The event as a captured step has it; None where it has none."""
    cat, piece = event.get("cat"), piece_of.get(_correlation(event))
    if cat in RUNTIME:
        at = bisect(spans, (event["ts"], float("inf"))) - 1 if event.get("ph") == "X" else -1
        return None if piece is not None or (at >= 0 and event["ts"] < spans[at][1]) else event
    if piece is not None and cat in DEVICE_WORK:
        args = {k: v for k, v in event["args"].items() if k != "External id"}
        return {**event, "args": {**args, "correlation": _correlation(pieces[piece])}}
    if cat in ("cpu_op", "python_function"):
        at = bisect(spans, (event["ts"] + event["dur"], float("inf"))) - 1
        return None if at >= 0 and event["ts"] < spans[at][1] else event
    return event


def _is_work(call: Event) -> bool:
    """Not a question to the driver: it launches, copies, waits or allocates."""
    return (
        re.search(r"Launch|Memcpy|Memset|Synchronize|Malloc|Free|Alloc", str(call.get("name")))
        is not None
    )


def rocm(trace: TraceJson) -> TraceJson:
    """The same run as an MI300X would have written it: HIP calls, Tensile, CK and MIOpen kernels,
    no grids on kernels."""
    blocking = {
        _correlation(e)
        for e in _events(trace)
        if e.get("cat") == "gpu_memcpy" and "Pageable" in str(e.get("name"))
    }
    changed = (_as_rocm(e, blocking) for e in _events(trace))
    out = _with(
        trace, changed, without=("cuda_driver_version", "cuda_runtime_version", "cupti_version")
    )
    devices = [{"id": i, **MI300X} for i in range(8)]
    return {
        **out,
        "deviceProperties": devices,
        "roctracer_version": 4.1,
        "hip_runtime_version": 60443483,
    }


DEGRADATIONS: dict[str, Callable[[TraceJson], TraceJson]] = {
    "no-shapes": no_shapes,
    "no-stacks": no_stacks,
    "no-marks": no_marks,
    "no-host-operators": no_host_operators,
    "kernels-only": kernels_only,
    "cpu-only": cpu_only,
    "late-start": late_start,
    "lost-kernels": lost_kernels,
    "lost-launches": lost_launches,
    "no-device": no_device,
    "one-step": one_step,
    "graphs": graphs,
    "rocm": rocm,
}


def _events(trace: TraceJson) -> list[Event]:
    events: list[Event] = trace["traceEvents"]
    return events


def _with(trace: TraceJson, events: Iterable[Event], *, without: tuple[str, ...] = ()) -> TraceJson:
    return {**{k: v for k, v in trace.items() if k not in without}, "traceEvents": list(events)}


def _kept(
    trace: TraceJson, keep: Callable[[Event], bool], *, without: tuple[str, ...] = ()
) -> TraceJson:
    return _with(trace, (e for e in _events(trace) if keep(e)), without=without)


def _less(event: Event, names: frozenset[str] | set[str]) -> Event:
    args = event.get("args")
    if not isinstance(args, dict) or names.isdisjoint(args):
        return event
    return {**event, "args": {k: v for k, v in args.items() if k not in names}}


def _correlation(event: Event) -> Any:
    return (event.get("args") or {}).get("correlation")


def _lossy(trace: TraceJson, categories: frozenset[str]) -> TraceJson:
    dice = random.Random(SEED)
    return _kept(trace, lambda e: e.get("cat") not in categories or dice.randrange(LOST_ONE_IN) > 0)


def _steps(trace: TraceJson) -> list[tuple[float, float]]:
    """The host's ProfilerStep windows, by time."""
    marks = [
        e
        for e in _events(trace)
        if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep")
    ]
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in marks)


def _as_rocm(event: Event, blocking: set[Any]) -> Event:
    cat, name = event.get("cat"), str(event.get("name"))
    if cat in RUNTIME:
        if _correlation(event) in blocking and name == "cudaMemcpyAsync":
            return {**event, "name": "hipMemcpyWithStream"}
        return {
            **event,
            "cat": "cuda_runtime",
            "name": HIP_CALLS.get(name) or re.sub(r"^cu(da)?(?=[A-Z])", "hip", name),
        }
    if cat not in DEVICE_WORK:
        return _as_miopen(event) if name.startswith("aten::cudnn_convolution") else event
    kept = {
        k: v
        for k, v in event["args"].items()
        if k in ("External id", "stream", "correlation", "bytes")
    }
    args = {**kept, "device": 2}
    if cat == "kernel":
        return {
            **event,
            "pid": 2,
            "name": _rocm_kernel(name),
            "args": {**args, "kind": "Dispatch Kernel"},
        }
    return {
        **event,
        "pid": 2,
        "name": name.replace("Pageable", "Host").replace("Pinned", "Host"),
        "args": args,
    }


def _as_miopen(event: Event) -> Event:
    """The same convolution by MIOpen's operator, which has a bias in third place and no allow_tf32
    in the last."""
    args = {
        k: [*v[:2], [] if k in ("Input Dims", "Input Strides") else "", *v[2:-1]]
        for k, v in event["args"].items()
        if k in INPUTS
    }
    return {
        **event,
        "name": event["name"].replace("cudnn", "miopen"),
        "args": {**event["args"], **args},
    }


def _rocm_kernel(name: str) -> str:
    """What the AMD library's kernel for the same work is called; PyTorch's own kernels keep their
    names."""
    if "nccl" in name.lower():
        return "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    half = (
        re.search(r"bf16|bfloat|half|f16|hmma|_h(884|1688|16816)|hs?h_", name, re.IGNORECASE)
        is not None
    )
    if name.startswith("void at::"):
        return name
    if _LIBRARY_ATTENTION.search(name):
        return "bwd_kernel_dk_dv" if re.search("bwd|bprop", name) else "attn_fwd"
    if _LAYOUT.search(name):
        return f"batched_transpose_32x32_{'half' if half else 'dword'}"
    if _LIBRARY_CONV.search(name):
        way = "bwd" if "dgrad" in name else "wrw" if "wgrad" in name else "fwd"
        dtype = "bf16" if half else "fp32"
        return f"igemm_{way}_gtcx3_nhwc_{dtype}_bx0_ex1_bt64x128x32_wt32x32x8_ws1x1_wr2x1"
    if _LIBRARY_GEMM.search(name):
        dtype = "BBS_BH" if half else "SB"
        tile = "MT128x128x64_MI16x16x1_SN_LDSB1_AFC1"
        return f"Cijk_Alik_Bljk_{dtype}_Bias_HA_S_SAV_UserArgs_{tile}"
    return name
