"""What `tune kernel` does: load the user's function, sweep its configurations, print the answer and keep the winners.

    stepscope tune kernel kernels.py:softmax --reference kernels.py:plain --shapes 4096x1000 --config BLOCK=1024,2048

The module is the user's own and is imported from the current folder: running it is the point.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.printing import note, print_report, put

if TYPE_CHECKING:
    from stepscope.core.hardware import Roofs
    from stepscope.core.kernel_tuning import Case, KernelTuning
    from stepscope.experiments.kernels.space import Settings
    from stepscope.experiments.kernels.tuner import Plan
    from stepscope.experiments.kernels.worker import Described, Opening

CACHE_VARIABLE = "STEPSCOPE_TUNING_CACHE"
NO_WINNER = 1
"""The exit code where no configuration was right."""


def add_kernel_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="a function that launches a kernel, or an nn.Module")
    parser.add_argument("--reference", metavar="MODULE:FUNCTION", help="the function that is right")
    parser.add_argument(
        "--shapes", metavar="SHAPES", help="cases to time: 4096x1000,128x64; for several tensors of a call 512x256;256x1024"
    )
    parser.add_argument("--edges", metavar="SHAPES", help="further shapes to check, or none (default: made from --shapes)")
    parser.add_argument("--dtypes", default="float32", metavar="DTYPES", help="float32, bfloat16, float16, float64")
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="a setting: BLOCK=64,128; may be repeated",
    )
    parser.add_argument(
        "--gradients",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="time forward and backward (default: gradients are checked where there are any, and not timed)",
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="where to run (auto: a GPU if any)")
    parser.add_argument(
        "--by",
        choices=("device", "call"),
        help="time the device alone, or whole calls with the host's part",
    )
    parser.add_argument("--cold", action="store_true", help="flush the caches before every call")
    parser.add_argument("--budget", type=_seconds, default=120.0, metavar="S", help="seconds for the whole sweep (default: 120)")
    parser.add_argument(
        "--config-timeout", type=_seconds, default=60.0, metavar="S", help="seconds for checking one configuration (default: 60)"
    )
    parser.add_argument(
        "--tolerance", type=_factor, default=4.0, metavar="X", help="times the reference's own rounding error (default: 4)"
    )
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="measured roofs, from `stepscope calibrate`")
    parser.add_argument("--cache", metavar="PATH", help=f"keep the winners there (default: ${CACHE_VARIABLE}, or nowhere)")
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text", help="how to print (default: text)")


def run_kernel(arguments: argparse.Namespace) -> int:
    path = arguments.cache or os.environ.get(CACHE_VARIABLE)
    if path:
        from stepscope.experiments.tune.cache import TuningCache

        # Said before anything is measured; and nothing is ever added to a file that is something else.
        TuningCache(path).refuse_strange()
    found = tune(arguments)
    _print(found, arguments.format)
    if path:
        num = keep(found, path)
        note(f"{num} winners are kept in {path}")
    return 0 if any(one.winner is not None for one in found.cases) else NO_WINNER


def tune(arguments: argparse.Namespace) -> KernelTuning:
    """The sweep that was asked for."""
    from stepscope.experiments.kernels.remote import remote_bench
    from stepscope.experiments.kernels.space import parse_configs, product
    from stepscope.experiments.kernels.tuner import SweepPolicy, tune_kernel

    axes = parse_configs(arguments.config)
    asked = product(axes) if axes else None
    opening = _opening(arguments, tuple(axes))
    roofs = _measured_roofs(arguments.hardware)
    # Mistakes in the options are told before torch is imported.
    _shapes(arguments), _dtypes(arguments), _edges(arguments)
    with remote_bench(opening, arguments.config_timeout) as bench:
        described = bench.describe()
        plan = _plan(arguments, described, asked, roofs)
        sample_s = 1e-3 if described.kind == "cuda" else 4e-3
        policy = SweepPolicy(
            budget_s=arguments.budget, config_s=arguments.config_timeout, tolerance=arguments.tolerance, sample_s=sample_s
        )
        return tune_kernel(bench, plan, policy, _told)


def keep(found: KernelTuning, path: str) -> int:
    """Every case's winner, checked as it is; says how many."""
    from stepscope.core.kernel_tuning import shape_words
    from stepscope.experiments.tune.cache import CacheEntry, CacheKey, TuningCache

    cache, num = TuningCache(path), 0
    for one in found.cases:
        if one.winner is None or (told := one.times[one.winner]) is None:
            continue
        key = CacheKey(
            what=f"kernel {found.what}" + (" with gradients" if found.has_gradients else ""),
            shapes=shape_words(one.case.shapes),
            dtype=one.case.dtype,
            device=found.device,
            versions=found.versions,
        )
        before = None if one.baseline is None else one.times[one.baseline]
        cache.add(
            CacheEntry(
                key=key,
                settings=found.tryings[one.winner].settings,
                ns=told.ns,
                baseline_ns=None if before is None else before.ns,
                checked=True,
            )
        )
        num += 1
    return num


def _opening(arguments: argparse.Namespace, names: tuple[str, ...]) -> Opening:
    from stepscope.experiments.kernels.worker import Opening

    return Opening(
        target=arguments.target,
        reference=arguments.reference,
        settings=names,
        device=None if arguments.device == "auto" else arguments.device,
        by=arguments.by,
        cold=arguments.cold,
        gradients=arguments.gradients,
    )


def _plan(arguments: argparse.Namespace, described: Described, asked: tuple[Settings, ...] | None, roofs: Roofs | None) -> Plan:
    from stepscope.experiments.kernels.floor import datasheet_roofs
    from stepscope.experiments.kernels.tuner import Plan

    configs, has_baseline = _configs(described, asked)
    return Plan(
        described=described,
        cases=_cases(arguments, described),
        configs=configs,
        has_baseline=has_baseline,
        by=arguments.by or ("call" if described.is_module else "device"),
        cold=arguments.cold,
        gradients=bool(arguments.gradients),
        roofs=roofs or datasheet_roofs(described.spec),
    )


def _configs(described: Described, asked: tuple[Settings, ...] | None) -> tuple[tuple[Settings, ...], bool]:
    """What is swept, the baseline first: the function as it is, where it can be called so."""
    from stepscope.errors import UsageError
    from stepscope.experiments.kernels.space import distinct

    found = asked or described.configs or described.autotuned or described.default_options
    if not found:
        raise UsageError(f"{described.name}: nothing to sweep. Give --config NAME=VALUES, or stepscope_configs beside it")
    if not described.needs_settings:
        return distinct([{}, *found]), True
    if not described.has_reference:
        needed = ", ".join(described.needs_settings)
        raise UsageError(
            f"{described.name} cannot be called without {needed}, so it cannot be its own reference: give --reference, "
            "or stepscope_reference beside it"
        )
    return tuple(found), False


def _cases(arguments: argparse.Namespace, described: Described) -> tuple[Case, ...]:
    from stepscope.errors import UsageError
    from stepscope.experiments.kernels.cases import edge_shapes, make_cases

    timed = _shapes(arguments) or described.shapes
    if not timed:
        raise UsageError(
            f"{described.name}: give the shapes to time, --shapes 4096x1000, or stepscope_shapes = [(4096, 1000)] beside it"
        )
    edges = _edges(arguments)
    if edges is None:
        # A shape takes torch.compile seconds: of those that nobody named, only what a job would meet is tried.
        made = edge_shapes(timed)
        edges = described.edges or (made[1:2] + made[4:5] if described.is_module else made)
    return make_cases(timed, edges, _dtypes(arguments))


def _shapes(arguments: argparse.Namespace) -> tuple[tuple[tuple[int, ...], ...], ...] | None:
    from stepscope.experiments.kernels.cases import parse_shapes

    return parse_shapes(arguments.shapes) if arguments.shapes else None


def _edges(arguments: argparse.Namespace) -> tuple[tuple[tuple[int, ...], ...], ...] | None:
    from stepscope.experiments.kernels.cases import parse_shapes

    if arguments.edges is None:
        return None
    return () if arguments.edges == "none" else parse_shapes(arguments.edges, "--edges")


def _dtypes(arguments: argparse.Namespace) -> tuple[str, ...]:
    from stepscope.experiments.kernels.cases import parse_dtypes

    return parse_dtypes(arguments.dtypes)


def _measured_roofs(path: Path | None) -> Roofs | None:
    from stepscope.readers.system.measured_rates import read_roofs

    return None if path is None else read_roofs(path)


def _print(found: KernelTuning, style: str) -> None:
    if style == "json":
        from stepscope.report.kernel_tune.json import kernel_tuning_json

        put(kernel_tuning_json(found) + "\n")
        return
    if style == "markdown":
        from stepscope.report.kernel_tune.markdown import kernel_tuning_markdown

        put(kernel_tuning_markdown(found))
        return
    from stepscope.report.kernel_tune.view import render_kernel_tuning, show_kernel_tuning

    print_report(lambda console: show_kernel_tuning(found, console), lambda: render_kernel_tuning(found))


def _told(what: str) -> None:
    if sys.stderr.isatty():
        note(f"{what} ...")


def _seconds(text: str) -> float:
    return _positive(text, "seconds", 86_400.0)


def _factor(text: str) -> float:
    return _positive(text, "a factor", 1e6)


def _positive(text: str, what: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}: more than 0, at most {most:g}")
    return value
