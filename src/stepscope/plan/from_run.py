"""A measured step at other widths.

Compute and idle time are as recorded, collectives are carried to wider groups.
What a rank does by itself is kept. A collective over data ranks moves other volumes in a group of
another size: its measured time is carried over by its fitted latency and bandwidth where there are
such, else by the ring's volume at the bandwidth it reached (Thakur, Rabenseifner and Gropp, 2005,
section 3). Where the wider cluster's links are known and slower, they decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.core.calibrated import bus_factor, ring_steps
from stepscope.errors import UsageError
from stepscope.plan.cluster import Cluster
from stepscope.plan.constants import DEFAULT
from stepscope.plan.devices import MAX_DEVICES
from stepscope.plan.network import Group, Network

COMMS = "comms_transfer"
COMPUTE = "compute"
RINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
"""Operations whose time is known to change with the group; others are kept."""
BY_FIT = "fitted latency and bandwidth"
BY_VOLUME = "a ring's volume at the measured bandwidth"
BY_LINKS = "the cluster's slower links"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """One kind and size of collective, on one rank."""

    op: str
    num_ranks: int
    size_bytes: int
    """0 where it was not recorded."""
    count: float
    """Number in a step."""
    seconds: float
    """Time of one, from the last arrival to its end."""
    is_data: bool
    """Whether its group grows when data ranks are added."""
    alpha_s: float | None = None
    """Latency of one step of a ring."""
    beta_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What extrapolation needs of a recorded run."""

    width: int
    parts_s: Mapping[str, float]
    """A step's parts; they add up to it. COMMS is what of the transfers nothing hides."""
    collectives: tuple[MeasuredCollective, ...]
    num_data: int
    """Ranks of a data-parallel group; 1 where there is none."""

    @property
    def step_s(self) -> float:
        return sum(self.parts_s.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthStep:
    """The step at one width."""

    width: int
    num_nodes: int
    num_data: int
    step_s: float
    parts_s: Mapping[str, float]
    speedup: float
    """Ratio of the work done in a second, against the measured run."""
    efficiency: float
    is_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """Widths in order, the measured one among them."""

    run: MeasuredRun
    is_strong: bool
    per_node: int
    steps: tuple[WidthStep, ...]
    methods: tuple[str, ...]
    """How collectives were carried to other groups."""
    notes: tuple[str, ...]

    @property
    def is_ideal(self) -> bool:
        """Whether nothing was measured that grows with the width: wider steps are at best so."""
        return not any(collective.is_data for collective in self.run.collectives)


def extrapolate(
    run: MeasuredRun,
    nodes: Sequence[int],
    *,
    per_node: int | None = None,
    is_strong: bool = False,
    cluster: Cluster | None = None,
) -> Extrapolation:
    """The run on so many nodes.

    Data ranks are added; tensor, pipeline and other groups stay as they are.
    """
    per_node = per_node or run.width
    model_ranks = run.width // run.num_data
    steps = [_measured(run, per_node)]
    methods: dict[str, None] = {}
    for num in nodes:
        width = num * per_node
        if width > MAX_DEVICES:
            raise UsageError(f"{width} ranks are more than the {MAX_DEVICES} that are planned for")
        if width % model_ranks:
            least = -(-width // model_ranks) * model_ranks
            raise UsageError(
                f"{width} ranks cannot hold whole copies of a model that is cut over "
                f"{model_ranks}; {least} ranks can: --nodes {-(-least // per_node)}"
            )
        if width != run.width:
            steps.append(_carried(run, width, per_node, is_strong, cluster, methods))
    notes = _notes(run, steps, per_node, is_strong, cluster)
    ordered = tuple(sorted(steps, key=lambda step: step.width))
    return Extrapolation(
        run=run,
        is_strong=is_strong,
        per_node=per_node,
        steps=ordered,
        methods=tuple(methods),
        notes=notes,
    )


def _measured(run: MeasuredRun, per_node: int) -> WidthStep:
    nodes = -(-run.width // per_node)
    return WidthStep(
        width=run.width,
        num_nodes=nodes,
        num_data=run.num_data,
        step_s=run.step_s,
        parts_s=dict(run.parts_s),
        speedup=1.0,
        efficiency=1.0,
        is_measured=True,
    )


def _carried(
    run: MeasuredRun,
    width: int,
    per_node: int,
    is_strong: bool,
    cluster: Cluster | None,
    methods: dict[str, None],
) -> WidthStep:
    growth = width / run.width
    num_data = round(run.num_data * growth)
    before = after = 0.0
    for collective in run.collectives:
        before += collective.count * collective.seconds
        after += collective.count * _seconds(collective, run, num_data, cluster, methods)
    parts = dict(run.parts_s)
    shrink = 1 / growth if is_strong else 1.0
    parts[COMPUTE] = parts.get(COMPUTE, 0.0) * shrink
    exposed = parts.get(COMMS, 0.0)
    hidden = max(before - exposed, 0.0) * shrink
    # What hid transfers hides as much again and no more; where they get shorter, the same share of
    # them.
    parts[COMMS] = max(after - hidden, exposed * after / before if before > 0 else exposed)
    step = sum(parts.values())
    speedup = (run.step_s / step) * (1.0 if is_strong else growth)
    return WidthStep(
        width=width,
        num_nodes=-(-width // per_node),
        num_data=num_data,
        step_s=step,
        parts_s=parts,
        speedup=speedup,
        efficiency=speedup / growth,
    )


def _seconds(
    collective: MeasuredCollective,
    run: MeasuredRun,
    num_data: int,
    cluster: Cluster | None,
    methods: dict[str, None],
) -> float:
    """One collective in the wider group."""
    if not collective.is_data or collective.op not in RINGS or collective.num_ranks < 2:
        return collective.seconds
    size = max(1, round(collective.num_ranks * num_data / run.num_data))
    if size == 1:
        return 0.0
    is_fitted = collective.alpha_s is not None and bool(collective.beta_bytes_per_s)
    if is_fitted:
        method = BY_FIT
        ratio = _fitted_s(collective, size) / _fitted_s(collective, collective.num_ranks)
    else:
        method = BY_VOLUME
        ratio = bus_factor(collective.op, size) / bus_factor(collective.op, collective.num_ranks)
    seconds = collective.seconds * ratio
    if cluster is not None and collective.size_bytes:
        linked_s = _over_links_s(collective, size, max(1, run.width // run.num_data), cluster)
        if linked_s > seconds:
            method, seconds = BY_LINKS, linked_s
    methods[method] = None
    return seconds


def _fitted_s(collective: MeasuredCollective, size: int) -> float:
    assert collective.alpha_s is not None
    assert collective.beta_bytes_per_s
    bus_bytes = collective.size_bytes * bus_factor(collective.op, size)
    return (
        ring_steps(collective.op, size) * collective.alpha_s
        + bus_bytes / collective.beta_bytes_per_s
    )


def _over_links_s(
    collective: MeasuredCollective, size: int, stride: int, cluster: Cluster
) -> float:
    network, group = Network(cluster, DEFAULT), Group(size, stride)
    if collective.op == "all_reduce":
        return float(network.reduce_s(group, collective.size_bytes))
    return float(network.gather_s(group, collective.size_bytes))


def _notes(
    run: MeasuredRun,
    steps: Sequence[WidthStep],
    per_node: int,
    is_strong: bool,
    cluster: Cluster | None,
) -> tuple[str, ...]:
    notes = [
        (
            "measured: compute, idle time, waits and copies of the recorded step; derived: "
            "collectives over data ranks"
        )
    ]
    if is_strong:
        notes.append(
            "derived too: compute shrinks with each rank's share of the batch, at the rate it was "
            "measured at"
        )
    if not any(collective.is_data for collective in run.collectives):
        notes.append(
            "no collective over data ranks was recorded: nothing grows with the width, and the "
            "answer is the ideal"
        )
    leaves = (
        any(step.num_nodes > 1 for step in steps if not step.is_measured) and run.width <= per_node
    )
    if leaves and cluster is None:
        notes.append(
            "the run is taken for one node's: between nodes its bandwidth is assumed too, which "
            "few networks reach; --cluster says what the links are"
        )
    if run.width == 1:
        notes.append("one rank has no collectives to measure: record two or more")
    return tuple(notes)
