"""The options of `stepscope plan`."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from stepscope.cli import options as declare
from stepscope.cli.options import count, real

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
FRAMEWORKS = (
    "megatron", "megatron-core", "megatron-deepspeed", "deepspeed", "nanotron", "torchtitan",
    "fsdp", "composer", "internevo", "ddp",
)  # fmt: skip
OPTIMIZERS = ("adam", "adam-bf16", "adam-8bit", "sgd", "momentum", "lion", "adafactor", "muon")
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "zb1p", "zb2p", "zbv")
OFFLOAD = ("none", "optimizer", "all", "nvme")
GRADS = ("bf16", "fp32")
TARGETS = ("torchrun", "fsdp2", "deepspeed", "megatron", "torchtitan", "accelerate", "transformers")
COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv",
)  # fmt: skip
ALL = "all"
"""Word in place of a framework: the fastest of all of them is answered by."""
FORMATS = ("terminal", "json", "html")
_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}

_positive = real("a number above 0", lambda value: 0 < value < 1e15)


def _counts(text: str) -> tuple[int, ...]:
    values = tuple(sorted({count(part.strip()) for part in text.split(",")}))
    if len(values) > 64:
        raise argparse.ArgumentTypeError("64 numbers are the most")
    return values


def _size(text: str) -> float:
    """100MB, 1GiB, 4096: decimal units, or those of two where an i says so."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?)(i?)b?", text.strip().casefold())
    if match is None or (match[3] and not match[2]):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no size such as 100MB or 1GiB")
    unit = _SIZES[match[2]]
    if match[3]:
        unit = 1024.0 ** list(_SIZES).index(match[2])
    return _positive(match[1]) * unit


def _tokens(text: str) -> float:
    """15T, 300B, 2.5e12."""
    word = text.strip().casefold()
    unit = _UNITS.get(word[-1:], 1.0)
    return _positive(word[:-1] if word[-1:] in _UNITS else word) * unit


def _hours(text: str) -> float:
    """30000h, 1250d, 30000."""
    word = text.strip().casefold()
    times = {"h": 1.0, "d": 24.0}.get(word[-1:])
    return _positive(word if times is None else word[:-1]) * (times or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Parts of the layout that are given; what is None is searched."""

    tp: int | None = declare.option("--tp N", "tensor parallel ranks", count)
    pp: int | None = declare.option("--pp N", "pipeline stages", count)
    vpp: int | None = declare.option(
        "--vpp N", "pieces of the model on each stage (interleaved)", count
    )
    dp: int | None = declare.option("--dp N", "data parallel ranks", count)
    cp: int | None = declare.option("--cp N", "context parallel ranks", count)
    ep: int | None = declare.option("--ep N", "ranks that experts are spread over", count)
    micro_batch: int | None = declare.option(
        "--micro-batch N", "sequences that one rank takes at a time", count
    )
    zero: int | None = declare.option(
        "--zero",
        "what data ranks shard: 1 optimizer, 2 gradients, 3 weights",
        int,
        choices=(0, 1, 2, 3),
    )
    sp: bool | None = declare.option(
        "--sp", "sequence parallelism of tensor ranks", action=argparse.BooleanOptionalAction
    )
    recompute: str | None = declare.option("--recompute", "of activations", choices=RECOMPUTE)
    recompute_every: int | None = declare.option(
        "--recompute-every N", "layers from one checkpoint to the next, of --recompute full", count
    )
    schedule: str | None = declare.option("--schedule", "of the pipeline", choices=SCHEDULES)
    offload: str | None = declare.option(
        "--offload",
        "to the host's memory, or all to its disks; none unless asked for",
        choices=OFFLOAD,
    )
    allow_offload: bool = declare.option("--allow-offload", "try offload too")
    host_memory: float | None = declare.option(
        "--host-memory GIB", "of a node, for what is offloaded", _positive
    )
    nvme: float | None = declare.option(
        "--nvme GB/S", "that a node's disks read and write, for what is offloaded there", _positive
    )
    no_flash: bool = declare.option("--no-flash", "attention that writes its scores to memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What else to answer."""

    layouts: int = declare.option("--layouts N", "layouts to list (default: 10)", count, 10)
    explain: str | None = declare.option(
        "--explain LAYOUT",
        "the whole account of one, by its name in the table; zero: what each ZeRO stage takes",
    )
    recorded_memory: list[str] | None = declare.option(
        "--recorded-memory FILE",
        "a memory snapshot, memory_stats or memory timeline to compare the plan with",
        was="--beside",
        nargs="+",
    )
    tokens: float | None = declare.option(
        "--tokens N", "a token budget, such as 15T: days, device-hours, cost, energy", _tokens
    )
    mtbf: float | None = declare.option(
        "--mtbf HOURS",
        "mean time between failures of one device, such as 30000h: the best checkpoint interval "
        "and the goodput (default with --tokens: what Llama 3's run had)",
        _hours,
    )
    checkpoint: float | None = declare.option(
        "--checkpoint S", "seconds that a checkpoint holds up training", _positive
    )
    restart: float | None = declare.option(
        "--restart S", "seconds from a failure to the next step (default: 600)", _positive
    )
    price: float | None = declare.option("--price X", "of one device-hour", _positive)
    what_if: list[str] = declare.option(
        "--what-if CHANGE", "device=B200, network=2x, framework=fsdp; may be repeated", default=[]
    )
    scaling: tuple[int, ...] | None = declare.option(
        "--scaling N,N", "numbers of devices to compare, such as 8,16,32,64", _counts
    )
    largest: bool = declare.option("--largest", "the largest model that fits on this cluster")
    smallest: bool = declare.option(
        "--smallest", "the smallest cluster of this device that holds the model"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Path from the plan to the run."""

    emit: str | None = declare.option(
        "--emit",
        "write the launch line and configuration of the best layout, or of --explain; "
        "--out names the folder",
        choices=TARGETS,
    )
    check: Path | None = declare.option(
        "--check FILE",
        "a ds_config.json, a torchtitan train.toml, or a script with flags of Megatron-LM or of "
        "transformers' Trainer: what it will take, and what is wrong with it",
        Path,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCollective:
    kind: str | None = declare.option(
        "--collective",
        "what one takes by each of NCCL's algorithms; with --bytes and --ranks",
        choices=COLLECTIVES,
    )
    bytes: float | None = declare.option("--bytes SIZE", "100MB, 1GiB, 4096", _size)
    ranks: int | None = declare.option("--ranks N", "default: all of the cluster", count)
    measured: list[str] = declare.option(
        "--measured ALGO=FILE",
        "what `calibrate` wrote under NCCL_ALGO=ALGO (ALGO/PROTO); may be repeated",
        default=[],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A recorded run, and the widths to predict for."""

    paths: list[str] | None = declare.option(
        "--from RUN",
        "a run, traces or a folder of them, as `diagnose` reads",
        declare.run_name,
        nargs="+",
    )
    nodes: tuple[int, ...] | None = declare.option("--nodes N,N", "nodes to predict for", _counts)
    ranks_per_node: int | None = declare.option(
        "--ranks-per-node N", "default: as many as the run has", count
    )
    strong: bool = declare.option(
        "--strong", "the global batch stays (default: each rank's batch stays)"
    )
    step_ms: float | None = declare.option(
        "--step-ms X", "the run's step time without a profiler, in ms", _positive
    )
    no_cache: bool = declare.no_cache()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a plan is shown, and where to."""

    format: str = declare.option(
        "--format", "default: terminal", default="terminal", choices=FORMATS
    )
    out: Path | None = declare.option(
        "-o/--out FILE", "write there instead of standard output; a folder with --emit", Path
    )
    rows: Path | None = declare.option(
        "--rows FILE", "published results as JSON lines; prints a prediction for each", Path
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    model: str | None = declare.option(
        "--model MODEL", "a name, a config.json, or a size such as 10b"
    )
    cluster: str | None = declare.option(
        "--cluster CLUSTER", "8x8xH100, 64xA100-40GB, or a .toml file"
    )
    seq: int | None = declare.option("--seq N", "tokens of a sequence", count)
    global_batch: int | None = declare.option("--global-batch N", "sequences of a step", count)
    precision: str = declare.option(
        "--precision", "of matrix products (default: bf16)", default="bf16", choices=PRECISIONS
    )
    framework: str | None = declare.option(
        "--framework",
        "its conventions (default: all that can be written are compared, and the best that runs on "
        "PyTorch alone is shown; with --emit and --check that of the file)",
        choices=(ALL, *FRAMEWORKS),
    )
    grads: str | None = declare.option(
        "--grads", "that gradients are kept and reduced in; as the framework does", choices=GRADS
    )
    optimizer: str = declare.option(
        "--optimizer", "default: adam", default="adam", choices=OPTIMIZERS
    )
    adapters: bool = declare.option(
        "--adapters", "the model is frozen, small adapters are trained (LoRA)"
    )
    hardware: Path | None = declare.option(
        "--hardware FILE", "rates measured by `stepscope calibrate`, not datasheets", Path
    )
    calibration: Path | None = declare.option(
        "--calibration FILE",
        "what `compare PLAN.json RUN --recalibrate FILE` learned from a run",
        Path,
    )
    pins: Pins = declare.group(Pins, "parts of the layout that are given")
    questions: Questions = declare.group(Questions, "what else to answer")
    launched: Launched = declare.group(Launched, "from the plan to the run")
    collective: OneCollective = declare.group(OneCollective, "one collective")
    run: RecordedRun = declare.group(RecordedRun, "from a recorded run")
    output: Output = declare.group(Output, "output")
