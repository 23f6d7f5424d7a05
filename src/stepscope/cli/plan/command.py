"""How to cut a model over a cluster: the best layouts, what a step takes, what fills the memory,
before anything is paid for.

MODEL is a built-in name (llama3-70b), a Hugging Face config.json, or a size (10b). CLUSTER is
NODESxDEVICESxNAME (8x8xH100), DEVICESxNAME, or a .toml file. Options such as --tp 8 pin a part of
the layout; what is not pinned is searched. --from RUN starts from a recorded run instead, and says
what its step becomes at other widths. --rows FILE predicts published results, one JSON line each.
--recorded-memory FILE compares the plan's memory with a recording of it. --emit writes the chosen
layout's launch line and configuration; --check reads a configuration and says what is wrong with
it. --collective says what one collective takes by each of NCCL's algorithms.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import printing
from stepscope.cli.options import add_no_cache, options_of, run_name

if TYPE_CHECKING:
    from stepscope.cli.plan.options import Output
    from stepscope.report.plan.account import Plan
    from stepscope.report.plan.measured_memory import MeasuredMemory

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
FRAMEWORKS = (
    "megatron",
    "megatron-core",
    "megatron-deepspeed",
    "nanotron",
    "torchtitan",
    "fsdp",
    "composer",
    "internevo",
    "ddp",
)
OPTIMIZERS = ("adam", "adam-bf16", "adam-8bit", "sgd", "momentum", "lion", "adafactor", "muon")
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "zb1p", "zb2p", "zbv")
OFFLOAD = ("none", "optimizer", "all")
TARGETS = ("torchrun", "fsdp2", "deepspeed", "megatron", "torchtitan", "accelerate")
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
)
DEFAULT_FRAMEWORK = "megatron-core"
FORMATS = ("terminal", "json", "html")
NOTHING_FITS = 1
"""Exit code where no layout fits: a script that asks before it launches."""
PINS = (
    ("tp", "tensor parallel ranks"),
    ("pp", "pipeline stages"),
    ("vpp", "pieces of the model on each stage (interleaved)"),
    ("dp", "data parallel ranks"),
    ("cp", "context parallel ranks"),
    ("ep", "ranks that experts are spread over"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="MODEL", help="a name, a config.json, or a size such as 10b"
    )
    parser.add_argument(
        "--cluster", metavar="CLUSTER", help="8x8xH100, 64xA100-40GB, or a .toml file"
    )
    parser.add_argument("--seq", type=_whole, metavar="N", help="tokens of a sequence")
    parser.add_argument("--global-batch", type=_whole, metavar="N", help="sequences of a step")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="bf16", help="of matrix products (default: bf16)"
    )
    parser.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        help=f"its conventions (default: {DEFAULT_FRAMEWORK}, or that of --emit or --check)",
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", help="default: adam")
    parser.add_argument(
        "--adapters",
        action="store_true",
        help="the model is frozen, small adapters are trained (LoRA)",
    )
    parser.add_argument(
        "--hardware",
        type=Path,
        metavar="FILE",
        help="rates measured by `stepscope calibrate`, not datasheets",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="what `compare PLAN.json RUN --recalibrate FILE` learned from a run",
    )
    _add_pins(parser.add_argument_group("parts of the layout that are given"))
    _add_questions(parser.add_argument_group("what else to answer"))
    _add_launch(parser.add_argument_group("from the plan to the run"))
    _add_collective(parser.add_argument_group("one collective"))
    run_group = parser.add_argument_group("from a recorded run")
    run_group.add_argument(
        "--from",
        dest="from_run",
        nargs="+",
        type=run_name,
        metavar="RUN",
        help="a run, traces or a folder of them, as `diagnose` reads",
    )
    run_group.add_argument("--nodes", type=_wholes, metavar="N,N", help="nodes to predict for")
    run_group.add_argument(
        "--ranks-per-node", type=_whole, metavar="N", help="default: as many as the run has"
    )
    run_group.add_argument(
        "--strong",
        action="store_true",
        help="the global batch stays (default: each rank's batch stays)",
    )
    run_group.add_argument(
        "--step-ms",
        type=_positive,
        metavar="X",
        help="the run's step time without a profiler, in ms",
    )
    add_no_cache(run_group)
    output = parser.add_argument_group("output")
    output.add_argument("--format", choices=FORMATS, default="terminal", help="default: terminal")
    output.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="write there instead of standard output; a folder with --emit",
    )
    output.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="published results as JSON lines; prints a prediction for each",
    )


def _add_pins(group: argparse._ArgumentGroup) -> None:
    for name, words in PINS:
        group.add_argument(f"--{name}", type=_whole, metavar="N", help=words)
    group.add_argument(
        "--micro-batch", type=_whole, metavar="N", help="sequences that one rank takes at a time"
    )
    group.add_argument(
        "--zero",
        type=int,
        choices=(0, 1, 2, 3),
        help="what data ranks shard: 1 optimizer, 2 gradients, 3 weights",
    )
    group.add_argument(
        "--sp",
        action=argparse.BooleanOptionalAction,
        help="sequence parallelism of tensor ranks",
    )
    group.add_argument("--recompute", choices=RECOMPUTE, help="of activations")
    group.add_argument("--schedule", choices=SCHEDULES, help="of the pipeline")
    group.add_argument(
        "--offload", choices=OFFLOAD, help="to the host's memory; none unless asked for"
    )
    group.add_argument("--allow-offload", action="store_true", help="try offload too")
    group.add_argument(
        "--host-memory", type=_positive, metavar="GIB", help="of a node, for what is offloaded"
    )
    group.add_argument(
        "--no-flash", action="store_true", help="attention that writes its scores to memory"
    )


def _add_launch(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--emit",
        choices=TARGETS,
        help="write the launch line and configuration of the best layout, or of --explain; "
        "--out names the folder",
    )
    group.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="a ds_config.json, a torchtitan train.toml or a script with Megatron-LM's flags: what "
        "it will take, and what is wrong with it",
    )


def _add_collective(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--collective",
        choices=COLLECTIVES,
        help="what one takes by each of NCCL's algorithms; with --bytes and --ranks",
    )
    group.add_argument("--bytes", type=_size, metavar="SIZE", help="100MB, 1GiB, 4096")
    group.add_argument("--ranks", type=_whole, metavar="N", help="default: all of the cluster")
    group.add_argument(
        "--measured",
        action="append",
        default=[],
        metavar="ALGO=FILE",
        help="what `calibrate` wrote under NCCL_ALGO=ALGO (ALGO/PROTO); may be repeated",
    )


def _add_questions(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--layouts", type=_whole, default=10, metavar="N", help="layouts to list (default: 10)"
    )
    group.add_argument(
        "--explain", metavar="LAYOUT", help="the whole account of one, by its name in the table"
    )
    group.add_argument(
        "--recorded-memory",
        nargs="+",
        metavar="FILE",
        help="a memory snapshot, memory_stats or memory timeline to compare the plan with",
    )
    # As it was called before.
    group.add_argument(
        "--beside",
        dest="recorded_memory",
        nargs="+",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    group.add_argument(
        "--tokens",
        type=_count,
        metavar="N",
        help="a token budget, such as 15T: days, device-hours, cost, energy",
    )
    group.add_argument("--price", type=_positive, metavar="X", help="of one device-hour")
    group.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="device=B200, network=2x, batch=0.5x; may be repeated",
    )
    group.add_argument(
        "--scaling",
        type=_wholes,
        metavar="N,N",
        help="numbers of devices to compare, such as 8,16,32,64",
    )
    group.add_argument(
        "--largest", action="store_true", help="the largest model that fits on this cluster"
    )
    group.add_argument(
        "--smallest",
        action="store_true",
        help="the smallest cluster of this device that holds the model",
    )


def run(arguments: argparse.Namespace) -> int:
    from stepscope.cli.plan.options import JobOptions, Output, Pins, Questions, RunOptions
    from stepscope.errors import UsageError

    output = options_of(Output, arguments)
    if arguments.rows is not None:
        if output.format != "json":
            raise UsageError("--rows prints JSON lines: give --format json")
        if arguments.model or arguments.cluster or arguments.from_run or arguments.recorded_memory:
            raise UsageError(
                "each row has its own model and cluster: leave out --model, --cluster, --from and "
                "--recorded-memory"
            )
        return _run_rows(arguments.rows, output.out)
    if arguments.from_run is not None and arguments.model is None:
        if arguments.recorded_memory is not None:
            raise UsageError(
                "--recorded-memory compares a model's plan with a recording: give --model and "
                "--cluster too"
            )
        from stepscope.cli.plan.from_run import run_from

        return run_from(options_of(RunOptions, arguments), output)
    if arguments.collective is not None:
        from stepscope.cli.plan.collective import run_collective

        return run_collective(arguments, output)
    if arguments.bytes or arguments.ranks or arguments.measured:
        raise UsageError("--bytes, --ranks and --measured are of --collective: name one")
    if arguments.check is not None:
        from stepscope.cli.plan.check import run_check

        return run_check(arguments, output)
    if arguments.emit is not None:
        from stepscope.cli.plan.emit import run_emit

        return run_emit(arguments, output)
    arguments.framework = arguments.framework or DEFAULT_FRAMEWORK
    from stepscope.cli.plan.answer import answer

    memory = None
    if arguments.recorded_memory is not None:
        from stepscope.cli.plan.recorded_memory import compared_memory, read_memory

        memory = read_memory(arguments.recorded_memory)
    plan = answer(
        options_of(JobOptions, arguments),
        options_of(Pins, arguments),
        options_of(Questions, arguments),
    )
    _print_or_write(plan, None if memory is None else compared_memory(plan, *memory), output)
    return 0 if plan.best is not None else NOTHING_FITS


def _print_or_write(plan: Plan, recorded: MeasuredMemory | None, output: Output) -> None:
    """The plan, to the file or to standard output."""
    from stepscope.cli.report import put_document, put_or_write

    if output.format == "json":
        from stepscope.report.plan.json import plan_json

        put_or_write(plan_json(plan, recorded) + "\n", output.out)
    elif output.format == "html":
        from stepscope.report.plan.html import plan_html

        put_or_write(plan_html(plan, recorded), output.out)
    else:
        from stepscope.report.plan.text import plan_document

        put_document(plan_document(plan, recorded), output.out)


def _run_rows(path: Path, out: Path | None) -> int:
    """A line for each row, in the file's order. What was measured is taken out before anything
    looks at a row."""
    from stepscope.cli.report import put_or_write
    from stepscope.core.progress import counted
    from stepscope.planner.rows import predict, read_rows
    from stepscope.protocol.json_text import json_text

    lines = []
    rows = list(read_rows(path))
    for row in counted("rows", rows, len(rows)):
        row.pop("measured", None)
        lines.append(json_text(predict(row)))
        if out is None:
            printing.put(lines.pop() + "\n")
    if out is not None:
        put_or_write("".join(f"{line}\n" for line in lines), out)
    return 0


def _whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1 on")
    return int(text)


def _wholes(text: str) -> tuple[int, ...]:
    values = tuple(sorted({_whole(part.strip()) for part in text.split(",")}))
    if len(values) > 64:
        raise argparse.ArgumentTypeError("64 numbers are the most")
    return values


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above 0")
    return value


_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def _size(text: str) -> float:
    """100MB, 1GiB, 4096: decimal units, or those of two where an i says so."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?)(i?)b?", text.strip().casefold())
    if match is None or (match[3] and not match[2]):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no size such as 100MB or 1GiB")
    unit = _SIZES[match[2]]
    if match[3]:
        unit = 1024.0 ** ("", "k", "m", "g", "t").index(match[2])
    return _positive(match[1]) * unit


_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def _count(text: str) -> float:
    """15T, 300B, 2.5e12."""
    word = text.strip().casefold()
    unit = _UNITS.get(word[-1:], 1.0)
    return _positive(word[:-1] if word[-1:] in _UNITS else word) * unit
