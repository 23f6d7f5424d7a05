"""The questions people bring.

What fits, how many devices it takes, how it scales, what a change would give, what it costs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stepscope.errors import UsageError
from stepscope.plan.catalog import find_model, model_names, scaled_model
from stepscope.plan.cluster import faster_network, resized
from stepscope.plan.compression import parse_compression
from stepscope.plan.contract.plan import Budget
from stepscope.plan.devices import whole_node, with_device
from stepscope.plan.estimate import Choice
from stepscope.plan.framework import DDP, FRAMEWORKS, GRADS, find_framework, with_grads
from stepscope.plan.job import PRECISIONS, TrainingJob
from stepscope.plan.model import Model
from stepscope.plan.search import Least, least_memory, search
from stepscope.plan.space import Space, divisors

MIN_PARAMS, MAX_PARAMS = 10e6, 100e12
NEAR = 1.02
"""Sizes are distinguished down to this."""
MAX_NODES = 8192
MAX_STEPS = 256
"""Sizes tried between a power of two and the next, each of them in some 10 ms."""
SECONDS_PER_DAY = 86400.0


def fitting(job: TrainingJob, space: Space | None = None) -> Least | None:
    """The least memory of the job, if that is no more than a device has."""
    least = least_memory(job, space)
    return least if least is not None and least.memory_bytes <= job.cluster.usable_bytes else None


def fastest(job: TrainingJob, space: Space | None = None) -> Choice | None:
    """The best layout; None where none fits."""
    return next(iter(search(job, space, top=1).best), None)


# The largest model.


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """What a cluster can train at most."""

    model: Model | None
    """A llama of any size; None where not even the smallest fits."""
    choice: Choice | None
    named: Model | None
    """The largest of the built-in models."""


def largest_model(job: TrainingJob, space: Space | None = None) -> Largest:
    """The largest that fits on the job's cluster at its sequence and batch.

    The job's own model does not matter.
    """
    low, high = MIN_PARAMS, MAX_PARAMS
    model = None
    while high / low > NEAR:
        middle = math.sqrt(low * high)
        tried = scaled_model(middle)
        if fitting(replace(job, model=tried), space) is None:
            high = middle
        else:
            low, model = middle, tried
    # A mixture may need fewer bytes for a parameter than a llama: look a little further.
    fit = (
        candidate
        for candidate in _by_size(job, 2.0 * high)
        if fitting(replace(job, model=candidate), space) is not None
    )
    named = next(fit, None)
    return Largest(
        model=model,
        choice=None if model is None else fastest(replace(job, model=model), space),
        named=named,
    )


def _by_size(job: TrainingJob, most: float) -> Iterator[Model]:
    """Models that have so many parameters and positions for the job's sequence, the largest
    first."""
    models = (find_model(name) for name in model_names())
    reach = (
        model for model in models if not model.max_positions or model.max_positions >= job.seq_len
    )
    yield from sorted(
        (model for model in reach if model.num_params <= most), key=lambda model: -model.num_params
    )


# The smallest cluster.


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The fewest devices that hold a model."""

    num_devices: int
    job: TrainingJob
    """The job on them."""
    least: Least
    """The layout with the least memory there."""
    choice: Choice
    """The fastest there."""


def smallest_cluster(
    job: TrainingJob, space: Space | None = None, *, most_nodes: int = MAX_NODES
) -> Smallest | None:
    """The fewest devices of the job's kind: a part of a node, or whole nodes.

    None where `most_nodes` are too few.
    How many devices the job's own cluster has does not matter, how many a node has does; a card
    on its own is asked about in nodes of the usual size.
    """
    job = replace(job, cluster=whole_node(job.cluster))
    for num in _sizes(job, space, most_nodes):
        resized_job = replace(job, cluster=resized(job.cluster, num))
        least = fitting(resized_job, space)
        choice = None if least is None else fastest(resized_job, space)
        if least is not None and choice is not None:
            return Smallest(num_devices=num, job=resized_job, least=least, choice=choice)
    return None


def _sizes(job: TrainingJob, space: Space | None, most_nodes: int) -> Iterator[int]:
    """Numbers of devices to try, from the first power of two that is surely needed."""
    per_node = job.cluster.devices_per_node
    doubled = [
        *divisors(per_node),
        *(per_node * 2**power for power in range(1, most_nodes.bit_length())),
    ]
    below = 0
    for num in doubled:
        if num > per_node * most_nodes:
            break
        if fitting(replace(job, cluster=resized(job.cluster, num)), space) is None:
            below = num
            continue
        # Between the last that was too small and this one: every node, as far as that is quick.
        step = max(1, (num - below) // per_node // MAX_STEPS) * per_node
        yield from range(below + step, num, step) if below >= per_node else ()
        yield num
        below = num


# Scaling.


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A job on so many devices."""

    num_devices: int
    choice: Choice | None
    """None where nothing fits or divides."""


def scaling(
    job: TrainingJob, space: Space | None, nums_devices: Sequence[int]
) -> tuple[Point, ...]:
    """The best on each number of devices."""
    jobs = ((num, replace(job, cluster=resized(job.cluster, num))) for num in nums_devices)
    return tuple(Point(num_devices=num, choice=fastest(each, space)) for num, each in jobs)


# What if.


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Another cluster, batch, sequence, precision or framework; 1 and None leave as it is."""

    words: str
    device: str | None = None
    network: float = 1.0
    batch: float = 1.0
    seq: float = 1.0
    nodes: float = 1.0
    precision: str | None = None
    framework: str | None = None
    grads: str | None = None
    compression: str | None = None


_FACTOR = re.compile(r"(?:x\s*)?(\d{1,6}(?:\.\d{1,6})?)(?:\s*x)?|1/([1-9]\d{0,5})", re.IGNORECASE)
_FACTORS = ("network", "batch", "seq", "nodes")
_NAMES = ("device", "precision", "framework", "grads", "compression")


def parse_change(word: str) -> Change:
    """KEY=VALUE, several with commas.

    device=B200, network=2, batch=0.5, seq=2, nodes=4 (each times what is), precision=fp8,
    framework=fsdp, grads=bf16, compression=powersgd:4.
    """
    factors: dict[str, float] = {}
    names: dict[str, str] = {}
    for part in word.split(","):
        key, _, value = (text.strip() for text in part.partition("="))
        key = key.casefold()
        if not value or key in factors or key in names or key not in (*_FACTORS, *_NAMES):
            raise UsageError(
                f"a change is KEY=VALUE with {', '.join((*_NAMES, *_FACTORS))}, each once, "
                f"such as device=B200,network=2, not {part.strip()[:80]!a}"
            )
        if key in _FACTORS:
            factors[key] = _factor(key, value)
        else:
            names[key] = value
    if names.get("precision", PRECISIONS[0]) not in PRECISIONS:
        raise UsageError(f"precisions are {', '.join(PRECISIONS)}, not {names['precision'][:80]!a}")
    if "framework" in names and find_framework(names["framework"]) is None:
        known = ", ".join(each.name for each in FRAMEWORKS)
        raise UsageError(f"frameworks are {known}, not {names['framework'][:80]!a}")
    if names.get("grads", GRADS[0]) not in GRADS:
        raise UsageError(f"gradients are kept in {' or '.join(GRADS)}, not {names['grads'][:80]!a}")
    words = [f"{key} {value}" for key, value in names.items()] + [
        f"{key} x {value:g}" for key, value in factors.items()
    ]
    return Change(
        words=", ".join(words),
        device=names.get("device"),
        precision=names.get("precision"),
        framework=names.get("framework"),
        grads=names.get("grads"),
        compression=names.get("compression"),
        **factors,
    )


def _factor(key: str, value: str) -> float:
    match = _FACTOR.fullmatch(value)
    factor = 0.0
    if match is not None:
        factor = float(match[1]) if match[1] else 1 / float(match[2])
    if factor <= 0:
        raise UsageError(
            f"{key} is times what is there now, such as {key}=2 or {key}=1/2, not {value[:80]!a}"
        )
    return factor


def changed_job(job: TrainingJob, change: Change) -> TrainingJob:
    """The job after a change."""
    cluster = job.cluster if change.device is None else with_device(job.cluster, change.device)
    if change.nodes != 1.0:
        cluster = resized(
            cluster, _whole("nodes", cluster.num_nodes * change.nodes) * cluster.devices_per_node
        )
    if change.network != 1.0:
        cluster = faster_network(cluster, change.network)
    precision = change.precision or job.precision
    if precision not in cluster.peak_flops:
        raise UsageError(
            f"{cluster.device.name} has no unit for {precision}; it has "
            f"{', '.join(sorted(cluster.peak_flops))}"
        )
    framework, grads = job.framework, change.grads or job.grads
    how = None if change.compression is None else parse_compression(change.compression)
    if how is not None and 0 not in framework.zero_stages:
        # Hooks are of gradients that every rank has whole.
        framework = DDP
    if change.framework is not None or change.grads is not None:
        framework = find_framework(change.framework or framework.name) or framework
        framework = framework if grads is None else with_grads(framework, grads)
    return replace(
        job,
        framework=framework,
        grads=grads,
        compression=how,
        cluster=cluster,
        precision=precision,
        global_batch=_whole("batch", job.global_batch * change.batch),
        seq_len=_whole("seq", job.seq_len * change.seq),
    )


def _whole(quantity: str, value: float) -> int:
    if abs(value - round(value)) > 1e-6 or value < 0.5:
        raise UsageError(
            f"the {quantity} would be {value:g}, which is not a whole number; choose another factor"
        )
    return round(value)


# Time and cost.


def budget(job: TrainingJob, choice: Choice, tokens: float) -> Budget:
    """Time, devices' hours, price and energy of a token budget, at a layout's speed,
    without a pause."""
    if not 0 < tokens < math.inf:
        raise UsageError(f"a budget of {tokens:g} tokens makes no sense; give a number above 0")
    num_steps = math.ceil(tokens / job.tokens)
    seconds = num_steps * choice.step_s
    # Idle devices are paid too.
    hours = seconds / 3600 * job.cluster.num_devices
    price, power = job.cluster.price_per_hour, job.cluster.power_w
    return Budget(
        tokens=tokens,
        num_steps=num_steps,
        days=seconds / SECONDS_PER_DAY,
        device_hours=hours,
        cost=None if price is None else price * hours,
        energy_kwh=None if power is None else power * hours / 1e3,
    )
