"""What `tune kernel` does: load the user's function, sweep its configurations, print the answer and
keep the winners.

    stepscope tune kernel kernels.py:softmax --reference kernels.py:plain --shapes 4096x1000 \
        --config BLOCK=1024,2048

The module is the user's own and is imported from the current folder: running it is the point.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope.cli import options as declare
from stepscope.cli.options import int_in_range, positive, seconds
from stepscope.cli.printing import note, print_answer
from stepscope.errors import UsageError
from stepscope.tune.cli.options import CACHE_VARIABLE, cache_path

if TYPE_CHECKING:
    from stepscope.core.hardware import DeviceRates
    from stepscope.tune.kernels.space import Settings
    from stepscope.tune.kernels.tuner import Plan, SweepPolicy
    from stepscope.tune.kernels.worker import Described, Opening
    from stepscope.tune.shapes.kernel_tuning import Case, KernelTuning

NO_WINNER = 1
"""The exit code where no configuration was right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOptions:
    """What the command line says."""

    target: str = declare.option(
        "MODULE:FUNCTION", "a function that launches a kernel, or an nn.Module"
    )
    reference: str | None = declare.option(
        "--reference MODULE:FUNCTION", "the function that is right"
    )
    shapes: str | None = declare.option(
        "--shapes SHAPES",
        "cases to time: 4096x1000,128x64; for several tensors of a call 512x256;256x1024",
    )
    edges: str | None = declare.option(
        "--edges SHAPES", "further shapes to check, or none (default: made from --shapes)"
    )
    dtypes: str = declare.option(
        "--dtypes DTYPES", "float32, bfloat16, float16, float64", default="float32"
    )
    config: list[str] = declare.option(
        "--config NAME=VALUES",
        "a setting: BLOCK=64,128 or BLOCK=64..512:step=64; may be repeated",
        default=[],
    )
    gradients: bool | None = declare.option(
        "--gradients",
        "time forward and backward (default: gradients are checked where there are any, and "
        "not timed)",
        action=argparse.BooleanOptionalAction,
    )
    device: str = declare.option(
        "--device",
        "where to run (auto: a GPU if any)",
        default="auto",
        choices=("auto", "cuda", "cpu"),
    )
    by: str | None = declare.option(
        "--by",
        "time the device alone, or whole calls with the host's part",
        choices=("device", "call"),
    )
    cold: bool = declare.option("--cold", "flush the caches before every call")
    budget_s: float = declare.option(
        "--budget S", "seconds for the whole sweep (default: 120)", seconds, 120.0
    )
    trials: int = declare.option(
        "--trials N",
        "configurations to try, where there are more than 512 (default: 200)",
        int_in_range("a number of trials", 1, 10_000),
        200,
    )
    config_s: float = declare.option(
        "--config-timeout S",
        "seconds for checking one configuration (default: 60)",
        seconds,
        60.0,
    )
    tolerance: float = declare.option(
        "--tolerance X",
        "times the reference's own rounding error (default: 4)",
        positive("a factor", 1e6),
        4.0,
    )
    hardware: Path | None = declare.option(
        "--hardware FILE", "measured roofs, from `stepscope calibrate`", Path
    )
    cache: str | None = declare.option(
        "--cache PATH", f"keep the winners there (default: ${CACHE_VARIABLE}, or nowhere)"
    )
    style: str = declare.style()


Shapes = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the sweep is asked."""

    opening: Opening
    configs: tuple[Settings, ...] | None
    shapes: Shapes | None
    edges: Shapes | None
    dtypes: tuple[str, ...]
    policy: SweepPolicy
    roofs: DeviceRates | None
    cache: str | None
    style: str


def read_options(words: Sequence[str]) -> Options:
    """Mistakes in the options are reported before torch is imported."""
    from stepscope.readers.measured_rates import read_roofs
    from stepscope.tune.kernels.cases import parse_dtypes, parse_shapes
    from stepscope.tune.kernels.space import parse_configs, product
    from stepscope.tune.kernels.tuner import SweepPolicy
    from stepscope.tune.kernels.worker import Opening

    about = "Sweep the configurations of one kernel, each checked against a reference."
    given = declare.read_options(KernelOptions, words, "stepscope tune kernel", about)
    axes = parse_configs(given.config)
    edges = None
    if given.edges is not None:
        edges = () if given.edges == "none" else parse_shapes(given.edges, "--edges")
    return Options(
        opening=Opening(
            target=given.target,
            reference=given.reference,
            settings=tuple(axes),
            device=None if given.device == "auto" else given.device,
            by=given.by,
            cold=given.cold,
            gradients=given.gradients,
        ),
        configs=product(axes) if axes else None,
        shapes=parse_shapes(given.shapes) if given.shapes else None,
        edges=edges,
        dtypes=parse_dtypes(given.dtypes),
        policy=SweepPolicy(
            budget_s=given.budget_s,
            config_s=given.config_s,
            tolerance=given.tolerance,
            trials=given.trials,
        ),
        roofs=None if given.hardware is None else read_roofs(given.hardware),
        cache=cache_path(given.cache),
        style=given.style,
    )


def run_kernel(words: Sequence[str]) -> int:
    from stepscope.core.codec import encode
    from stepscope.tune.kernel_report.view import kernel_tuning_document

    options = read_options(words)
    if options.cache:
        from stepscope.tune.cache import TuningCache

        # Said before anything is measured; and nothing is ever added to a file that is something
        # else.
        TuningCache(options.cache).refuse_strange()
    tuning = tune(options)
    print_answer(tuning, options.style, encode, kernel_tuning_document)
    if options.cache:
        num = keep(tuning, options.cache)
        note(f"{num} winners are kept in {options.cache}")
    return 0 if any(result.winner is not None for result in tuning.cases) else NO_WINNER


def tune(options: Options) -> KernelTuning:
    """The sweep that was asked for."""
    from stepscope.tune.kernels.remote import remote_bench
    from stepscope.tune.kernels.tuner import tune_kernel

    with remote_bench(options.opening, options.policy.config_s) as bench:
        described = bench.describe()
        sample_s = 1e-3 if described.kind == "cuda" else 4e-3
        policy = replace(options.policy, sample_s=sample_s)
        return tune_kernel(bench, _plan(options, described), policy)


def keep(tuning: KernelTuning, path: str) -> int:
    """Every case's winner, checked as it is; says how many."""
    from stepscope.tune.cache import CacheEntry, CacheKey, TuningCache
    from stepscope.tune.shapes.kernel_tuning import shape_words

    cache, num = TuningCache(path), 0
    for result in tuning.cases:
        if result.winner is None or (timed := result.times[result.winner]) is None:
            continue
        key = CacheKey(
            what=f"kernel {tuning.what}" + (" with gradients" if tuning.measured.gradients else ""),
            shapes=shape_words(result.case.shapes),
            dtype=result.case.dtype,
            device=tuning.device.name,
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
    from stepscope.tune.kernels.tuner import Plan, datasheet_roofs

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
    from stepscope.tune.kernels.space import distinct

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
    from stepscope.tune.kernels.cases import edge_shapes, make_cases

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
