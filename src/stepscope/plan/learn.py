"""A plan compared with a run of it: which part was off, and the planner's rates after it.

Compute, collectives and launches each get one factor, measured over planned. A factor changes the
efficiencies that datasheets do not give; what overlaps is planned anew with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace

from msgspec import structs

from stepscope.errors import StepscopeError
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster import Cluster
from stepscope.plan.constants import Constants
from stepscope.plan.contract.plan import PlanContract
from stepscope.plan.contract.plan_calibration import MAX_FACTOR, MIN_FACTOR, Factors
from stepscope.plan.devices import make_cluster
from stepscope.plan.estimate import choice_of
from stepscope.plan.framework import find_framework
from stepscope.plan.job import OPTIMIZERS, PRECISIONS, TrainingJob
from stepscope.plan.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout
from stepscope.plan.model import Model, model_flops_per_token
from stepscope.plan.validate import problems

COMPUTE, COMMS, BUBBLE, HOST, INPUT, COPIES, OTHER = (
    "compute", "comms", "bubble", "host", "input", "copies", "other",
)  # fmt: skip
PLANNED = {
    "gemm": COMPUTE, "attention": COMPUTE, "stream": COMPUTE, "recompute": COMPUTE,
    "head": COMPUTE, "optimizer": COMPUTE, "host": HOST, "tensor_comms": COMMS,
    "expert_comms": COMMS, "context_comms": COMMS, "shard_comms": COMMS, "pipeline_comms": COMMS,
    "data_comms": COMMS, "bubble": BUBBLE, "jitter": BUBBLE, "offload": COPIES,
}  # fmt: skip
MEASURED = {
    "compute": COMPUTE, "comms_transfer": COMMS, "comms_wait": BUBBLE, "rank_spread": BUBBLE,
    "idle_launch": HOST, "idle_sync": HOST, "idle_allocator": HOST, "idle_input": INPUT,
    "transfer": COPIES,
}  # fmt: skip
"""Parts of a recorded step. What is not here is other."""
PROFILER = "unprofiled"
"""What a step takes more without a profiler; less than nothing where the profiler slowed it."""
MAX_DEGREE = 10**9
ROUNDS = 12
NEAR = 0.01
SMALL = 0.02
"""Share of a step: a part below it on either side gives no factor, as it is mostly noise."""
SHARES = {
    COMPUTE: (
        "gemm_share", "gemm_share_hopper", "gemm_share_blackwell", "gemm_share_cdna3",
        "gemm_share_cdna4", "gemm_share_fp8", "gemm_share_fp8_blackwell", "gemm_share_fp8_cdna",
        "gemm_share_fp4", "flash_share", "flash_share_hopper", "flash_share_cdna",
        "fused_share_hopper", "fused_share_blackwell", "stream_share", "stream_share_blackwell",
        "scalar_share",
    ),
    COMMS: ("link_share", "network_share"),
}  # fmt: skip
"""Rates: a part that takes twice as long has half of them."""
TIMES = {
    COMMS: ("collective_s", "gather_s", "network_latency"),
    HOST: ("host_layer_s", "host_collective_s", "host_send_s"),
}


def planned_parts(times: Mapping[str, float]) -> dict[str, float]:
    """A plan's times by what a run can tell apart."""
    parts = dict.fromkeys((COMPUTE, COMMS, BUBBLE, HOST, COPIES), 0.0)
    for name, value in times.items():
        part = PLANNED.get(name, OTHER)
        parts[part] = parts.get(part, 0.0) + value
    return parts


def measured_parts(parts_s: Mapping[str, float]) -> dict[str, float]:
    """A recorded step's parts likewise; a part that was not recorded is not there.

    A profiler slows the host: what a step took longer under it is taken off the waits for the
    host, then for input.
    """
    parts: dict[str, float] = {}
    for name, value in parts_s.items():
        if name != PROFILER or value > 0:
            part = MEASURED.get(name, OTHER)
            parts[part] = parts.get(part, 0.0) + value
    slowed = max(0.0, -parts_s.get(PROFILER, 0.0))
    for part in (HOST, INPUT, OTHER):
        taken = min(slowed, max(0.0, parts.get(part, 0.0)))
        if taken:
            parts[part] -= taken
            slowed -= taken
    if slowed:
        parts[OTHER] = parts.get(OTHER, 0.0) - slowed
    return parts


def factors_of(
    planned: Mapping[str, float], measured: Mapping[str, float], step_s: float
) -> dict[str, float]:
    """Measured over planned, of the parts that are large enough on both sides."""
    factors = {
        part: _kept(measured[part] / planned[part])
        for part in (COMPUTE, COMMS)
        if min(planned.get(part, 0.0), measured.get(part, 0.0)) > SMALL * step_s
    }
    if planned.get(HOST, 0.0) > SMALL * step_s and COMPUTE in measured:
        factors[HOST] = _kept(_launches(measured) / _launches(planned))
    return factors


def _launches(parts: Mapping[str, float]) -> float:
    """How long a step's launches take at most: the device's own time and its waits for them."""
    return sum(parts.get(part, 0.0) for part in (COMPUTE, COMMS, HOST))


def _kept(factor: float) -> float:
    return min(max(factor, MIN_FACTOR), MAX_FACTOR)


def with_factors(constants: Constants, factors: Mapping[str, float]) -> Constants:
    """Efficiencies after a run. Fields that this planner does not have are left out."""
    has = {field.name for field in fields(constants)}
    changed: dict[str, float] = {}
    for part, factor in factors.items():
        for name in SHARES.get(part, ()):
            if name in has:
                changed[name] = getattr(constants, name) / factor
        for name in TIMES.get(part, ()):
            if name in has:
                changed[name] = getattr(constants, name) * factor
    memory = factors.get("memory")
    if memory is not None:
        changed["fragmentation"] = max(1.0, constants.fragmentation * memory)
    return replace(constants, **changed)


def recalibrated(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """Measured products and attention of a hardware file are slower by the same factor."""
    compute = factors.get(COMPUTE)
    if compute is None or not (cluster.gemms or cluster.attention):
        return cluster
    gemms = {name: replace(gemm, peak=gemm.peak / compute) for name, gemm in cluster.gemms.items()}
    attention = {name: rate / compute for name, rate in cluster.attention.items()}
    return replace(cluster, gemms=gemms, attention=attention)


def fitted(
    job: TrainingJob, layout: Layout, measured: Mapping[str, float], first: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Factors under which the layout is planned as it was measured, and its step then.

    What hides a collective changes with compute, so one division is not enough.
    """
    factors = dict(first)
    step = 0.0
    for _ in range(ROUNDS):
        constants = with_factors(job.constants, factors)
        tried = replace(job, constants=constants, cluster=recalibrated(job.cluster, factors))
        choice = choice_of(tried, layout)
        step, planned = choice.step_s, planned_parts(choice.times)
        off = {
            part: measured[part] / planned[part]
            for part in factors
            if part != HOST and planned.get(part, 0.0) > 0
        }
        if HOST in factors and planned[HOST] > 0:
            off[HOST] = _launches(measured) / _launches(planned)
        if all(abs(ratio - 1) < NEAR for ratio in off.values()):
            break
        for part, ratio in off.items():
            # Half of the way, in ratios: parts hide behind one another.
            factors[part] = _kept(factors[part] * ratio**0.5)
    return factors, step


def planned_flops(job: TrainingJob) -> float:
    """FLOPs of the model, on a device in a step."""
    tokens = job.global_batch * job.seq_len / job.cluster.num_devices
    return model_flops_per_token(job.model, job.seq_len) * tokens


def rebuilt(plan: PlanContract) -> TrainingJob | None:
    """The plan's job again; None where its model or its framework cannot be found by name, or its
    rates were a hardware file's."""
    described = plan.job
    if plan.judged_by.kind == "calibrated":
        return None
    framework = find_framework(described.framework)
    try:
        model = _model(described.model.name, described.model.source)
        base = make_cluster(
            described.cluster.device,
            described.cluster.num_devices,
            described.cluster.devices_per_node,
        )
    except StepscopeError:
        return None
    is_same = model.num_params == described.model.params
    is_known = described.optimizer in OPTIMIZERS and described.precision in PRECISIONS
    if framework is None or not is_same or not is_known:
        return None
    if not 1 <= described.seq_len <= MAX_DEGREE or not 1 <= described.global_batch <= MAX_DEGREE:
        return None
    rates = {tier.name: tier for tier in described.cluster.tiers}
    tiers = tuple(
        structs.replace(
            tier, bytes_per_s=rates[tier.name].bytes_per_s, latency_s=rates[tier.name].latency_s
        )
        if tier.name in rates
        else tier
        for tier in base.tiers
    )
    return TrainingJob(
        model=model,
        cluster=replace(base, tiers=tiers, memory_bytes=described.cluster.memory_bytes),
        seq_len=described.seq_len,
        global_batch=described.global_batch,
        precision=described.precision,
        framework=framework,
        optimizer=OPTIMIZERS[described.optimizer],
        is_adapter=described.adapters,
    )


def layout_of(layout: Layout, job: TrainingJob) -> Layout | None:
    """The plan's layout; None where a stranger's file has one that cannot be."""
    values = asdict(layout)
    degrees = ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "num_micro")
    words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}
    is_sound = all(1 <= values[name] <= MAX_DEGREE for name in degrees)
    is_known = all(values[name] in known for name, known in words.items())
    if not (is_sound and is_known and 0 <= layout.zero_stage <= 3):
        return None
    return None if problems(job, layout) else layout


def _model(name: str, source: str) -> Model:
    """Model by its name, else by the config.json that the plan was made of."""
    try:
        return find_model(name)
    except StepscopeError:
        if not source.endswith(".json"):
            raise
        return find_model(source)


def as_factors(factors: Mapping[str, float]) -> Factors:
    return Factors(
        compute=factors.get(COMPUTE),
        comms=factors.get(COMMS),
        host=factors.get(HOST),
        memory=factors.get("memory"),
    )


def as_mapping(factors: Factors) -> dict[str, float]:
    """Mapping without those that are not known."""
    values = {
        COMPUTE: factors.compute,
        COMMS: factors.comms,
        HOST: factors.host,
        "memory": factors.memory,
    }
    return {name: value for name, value in values.items() if value is not None}
