"""What `tune kernel` does: load the user's function, sweep its configurations, print the answer and
keep the winners.

    stepscope tune kernel kernels.py:softmax --reference kernels.py:plain --shapes 4096x1000 \
        --config BLOCK=1024,2048

The module is the user's own and is imported from the current folder: running it is the point.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope.cli.option_types import positive, seconds
from stepscope.cli.options import add_format
from stepscope.cli.printing import note, print_document, put
from stepscope.cli.tune.options import CACHE_VARIABLE

if TYPE_CHECKING:
    from stepscope.core.experiments.kernel_tuning import Case, KernelTuning
    from stepscope.core.hardware import DeviceRates
    from stepscope.experiments.kernels.space import Settings
    from stepscope.experiments.kernels.tuner import Plan, SweepPolicy
    from stepscope.experiments.kernels.worker import Described, Opening

NO_WINNER = 1
"""The exit code where no configuration was right."""


def add_kernel_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="MODULE:FUNCTION",
        help="a function that launches a kernel, or an nn.Module",
    )
    parser.add_argument("--reference", metavar="MODULE:FUNCTION", help="the function that is right")
    parser.add_argument(
        "--shapes",
        metavar="SHAPES",
        help="cases to time: 4096x1000,128x64; for several tensors of a call 512x256;256x1024",
    )
    parser.add_argument(
        "--edges",
        metavar="SHAPES",
        help="further shapes to check, or none (default: made from --shapes)",
    )
    parser.add_argument(
        "--dtypes", default="float32", metavar="DTYPES", help="float32, bfloat16, float16, float64"
    )
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
        help="time forward and backward (default: gradients are checked where there are any, and "
        "not timed)",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="where to run (auto: a GPU if any)",
    )
    parser.add_argument(
        "--by",
        choices=("device", "call"),
        help="time the device alone, or whole calls with the host's part",
    )
    parser.add_argument("--cold", action="store_true", help="flush the caches before every call")
    parser.add_argument(
        "--budget",
        type=seconds,
        default=120.0,
        metavar="S",
        help="seconds for the whole sweep (default: 120)",
    )
    parser.add_argument(
        "--config-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds for checking one configuration (default: 60)",
    )
    parser.add_argument(
        "--tolerance",
        type=_factor,
        default=4.0,
        metavar="X",
        help="times the reference's own rounding error (default: 4)",
    )
    parser.add_argument(
        "--hardware", type=Path, metavar="FILE", help="measured roofs, from `stepscope calibrate`"
    )
    parser.add_argument(
        "--cache",
        metavar="PATH",
        help=f"keep the winners there (default: ${CACHE_VARIABLE}, or nowhere)",
    )
    add_format(parser)


Shapes = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    opening: Opening
    configs: tuple[Settings, ...] | None
    shapes: Shapes | None
    edges: Shapes | None
    dtypes: tuple[str, ...]
    policy: SweepPolicy
    roofs: DeviceRates | None
    cache: str | None
    style: str


def options_of(arguments: argparse.Namespace) -> Options:
    """Mistakes in the options are reported before torch is imported."""
    from stepscope.experiments.kernels.cases import parse_dtypes, parse_shapes
    from stepscope.experiments.kernels.space import parse_configs, product
    from stepscope.experiments.kernels.tuner import SweepPolicy
    from stepscope.experiments.kernels.worker import Opening
    from stepscope.readers.system.measured_rates import read_roofs

    axes = parse_configs(arguments.config)
    edges = arguments.edges
    if edges is not None:
        edges = () if edges == "none" else parse_shapes(edges, "--edges")
    return Options(
        opening=Opening(
            target=arguments.target,
            reference=arguments.reference,
            settings=tuple(axes),
            device=None if arguments.device == "auto" else arguments.device,
            by=arguments.by,
            cold=arguments.cold,
            gradients=arguments.gradients,
        ),
        configs=product(axes) if axes else None,
        shapes=parse_shapes(arguments.shapes) if arguments.shapes else None,
        edges=edges,
        dtypes=parse_dtypes(arguments.dtypes),
        policy=SweepPolicy(
            budget_s=arguments.budget,
            config_s=arguments.config_timeout,
            tolerance=arguments.tolerance,
        ),
        roofs=None if arguments.hardware is None else read_roofs(arguments.hardware),
        cache=arguments.cache or os.environ.get(CACHE_VARIABLE),
        style=arguments.format,
    )


def run_kernel(arguments: argparse.Namespace) -> int:
    options = options_of(arguments)
    if options.cache:
        from stepscope.experiments.tune.cache import TuningCache

        # Said before anything is measured; and nothing is ever added to a file that is something
        # else.
        TuningCache(options.cache).refuse_strange()
    tuning = tune(options)
    _print(tuning, options.style)
    if options.cache:
        num = keep(tuning, options.cache)
        note(f"{num} winners are kept in {options.cache}")
    return 0 if any(result.winner is not None for result in tuning.cases) else NO_WINNER


def tune(options: Options) -> KernelTuning:
    """The sweep that was asked for."""
    from stepscope.experiments.kernels.remote import remote_bench
    from stepscope.experiments.kernels.tuner import tune_kernel

    with remote_bench(options.opening, options.policy.config_s) as bench:
        described = bench.describe()
        sample_s = 1e-3 if described.kind == "cuda" else 4e-3
        policy = replace(options.policy, sample_s=sample_s)
        return tune_kernel(bench, _plan(options, described), policy, _progress)


def keep(tuning: KernelTuning, path: str) -> int:
    """Every case's winner, checked as it is; says how many."""
    from stepscope.core.experiments.kernel_tuning import shape_words
    from stepscope.experiments.tune.cache import CacheEntry, CacheKey, TuningCache

    cache, num = TuningCache(path), 0
    for result in tuning.cases:
        if result.winner is None or (timed := result.times[result.winner]) is None:
            continue
        key = CacheKey(
            what=f"kernel {tuning.what}" + (" with gradients" if tuning.has_gradients else ""),
            shapes=shape_words(result.case.shapes),
            dtype=result.case.dtype,
            device=tuning.device,
            versions=tuning.versions,
        )
        before = None if result.baseline is None else result.times[result.baseline]
        cache.add(
            CacheEntry(
                key=key,
                settings=tuning.tryings[result.winner].settings,
                ns=timed.ns,
                baseline_ns=None if before is None else before.ns,
                checked=True,
            )
        )
        num += 1
    return num


def _plan(options: Options, described: Described) -> Plan:
    from stepscope.experiments.kernels.floor import datasheet_roofs
    from stepscope.experiments.kernels.tuner import Plan

    opening = options.opening
    configs, has_baseline = _configs(described, options.configs)
    return Plan(
        described=described,
        cases=_cases(options, described),
        configs=configs,
        has_baseline=has_baseline,
        by=opening.by or ("call" if described.is_module else "device"),
        cold=opening.cold,
        gradients=bool(opening.gradients),
        roofs=options.roofs or datasheet_roofs(described.spec),
    )


def _configs(
    described: Described, given: tuple[Settings, ...] | None
) -> tuple[tuple[Settings, ...], bool]:
    """What is swept, the baseline first: the function as it is, where it can be called so."""
    from stepscope.errors import UsageError
    from stepscope.experiments.kernels.space import distinct

    configs = given or described.configs or described.autotuned or described.default_options
    if not configs:
        raise UsageError(
            f"{described.name}: nothing to sweep. Give --config NAME=VALUES, or stepscope_configs "
            "beside it"
        )
    if not described.needs_settings:
        return distinct([{}, *configs]), True
    if not described.has_reference:
        needed = ", ".join(described.needs_settings)
        raise UsageError(
            f"{described.name} cannot be called without {needed}, so it cannot be its own "
            "reference: give --reference, or stepscope_reference beside it"
        )
    return tuple(configs), False


def _cases(options: Options, described: Described) -> tuple[Case, ...]:
    from stepscope.errors import UsageError
    from stepscope.experiments.kernels.cases import edge_shapes, make_cases

    timed = options.shapes or described.shapes
    if not timed:
        raise UsageError(
            f"{described.name}: give the shapes to time, --shapes 4096x1000, or stepscope_shapes "
            "= [(4096, 1000)] beside it"
        )
    edges = options.edges
    if edges is None:
        # A shape takes torch.compile seconds: of those that nobody named, only what a job would
        # meet is tried.
        made = edge_shapes(timed)
        edges = described.edges or (made[1:2] + made[4:5] if described.is_module else made)
    return make_cases(timed, edges, options.dtypes)


def _print(tuning: KernelTuning, style: str) -> None:
    if style == "json":
        from stepscope.report.kernel_tune.json import kernel_tuning_json

        put(kernel_tuning_json(tuning) + "\n")
        return
    from stepscope.report.kernel_tune.view import kernel_tuning_document

    print_document(kernel_tuning_document(tuning), style)


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        note(f"{what} ...")


def _factor(text: str) -> float:
    return positive(text, "a factor", 1e6)
