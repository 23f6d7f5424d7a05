"""`stepscope.plan/1`: what `stepscope plan --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import UNSET, Struct, UnsetType, field

from stepscope.core.codec import AtLeastZero, Contract, Count, one_of
from stepscope.hardware.links import Tier
from stepscope.plan.layout import Layout


class Model(Struct, frozen=True, kw_only=True):
    """The model that is trained."""

    name: str
    params: Count
    active_params: Count
    """Parameters that a token passes through."""
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    ffn_hidden: Count
    vocab: Count
    experts: Count | None
    """Experts of one layer; null for a dense model."""
    source: str
    """Where its shape comes from."""


class Cluster(Struct, frozen=True, kw_only=True):
    """The machines."""

    device: str
    num_devices: Count
    devices_per_node: Count
    memory_bytes: AtLeastZero
    """One device's."""
    tiers: tuple[Tier, ...]


class Job(Struct, frozen=True, kw_only=True):
    """What is trained, where and how."""

    model: Model
    cluster: Cluster
    seq_len: Count
    global_batch: Count
    """Sequences of one step, on all devices."""
    precision: str
    framework: str
    optimizer: str
    adapters: bool
    """Whether adapters (LoRA) are trained, and the model's weights stay."""


class Account(Struct, frozen=True, kw_only=True):
    """One layout's figures."""

    name: str
    """Name as --explain takes it."""
    layout: Layout
    step_s: AtLeastZero
    tokens_per_s: AtLeastZero
    """The whole cluster's."""
    tokens_per_s_per_device: AtLeastZero
    mfu: AtLeastZero
    hfu: AtLeastZero
    memory_bytes: AtLeastZero
    """Bytes on the device that holds most."""
    fits: bool
    memory: Mapping[str, float] = field(name="memory_parts_bytes")
    """Parts that add up to memory_bytes."""
    time: Mapping[str, float] = field(name="time_parts_s")
    """Parts that add up to step_s."""
    why: str | None = None
    """Why it loses against the best."""
    ranges: Mapping[str, tuple[float, float]] | UnsetType = UNSET
    """Ranges by figure, from where to where 80 % of what others measured lies around such plans;
    left out where a file of an older version has none."""


class Variant(Struct, frozen=True, kw_only=True):
    """The best layout of the same job with one thing changed, or at another width."""

    name: str
    num_devices: Count
    best: Account | None
    """null where none fits."""
    note: str | None = None


class FrameworkRow(Struct, frozen=True, kw_only=True):
    """The same job under one framework."""

    name: str
    emit: str
    """The word of --emit that writes it."""
    best: Account | None
    """The best of the layouts that can be written; null where there is none."""
    is_answered: bool
    """Whether the rest of the plan is of this one."""
    adoption: str
    """What it takes to train a model of one's own with it."""
    reason: str | None
    """Why there is no layout."""


class Budget(Struct, frozen=True, kw_only=True):
    """What so many tokens take. Cost and energy are null where price or power is not known."""

    tokens: float
    num_steps: Count
    days: AtLeastZero
    device_hours: AtLeastZero
    cost: float | None
    energy_kwh: float | None


class Failures(Struct, frozen=True, kw_only=True):
    """What failures cost, with checkpoints as often as is best."""

    mtbf_hours: AtLeastZero
    """One device's mean time between failures."""
    job_mtbf_hours: AtLeastZero
    """The mean time between failures of all devices together."""
    checkpoint_s: AtLeastZero
    """Seconds that a checkpoint holds up the run."""
    restart_s: AtLeastZero
    """Seconds from a failure to the next step."""
    every_s: AtLeastZero
    """Time of work between two checkpoints: the best interval, in whole steps."""
    every_steps: Count
    goodput: AtLeastZero
    """The share of time that is work which stays."""
    days: float | None
    """Days of --tokens, failures counted; null without, or where nothing stays."""
    num_failures: float | None
    """Expected in that time."""


class JudgedBy(Struct, frozen=True, kw_only=True):
    """Rates that the times are judged by."""

    kind: Annotated[str, one_of("calibrated", "datasheet")]
    hardware: str | None
    """The file that the machine's rates were read from."""


class RecordedMemoryRow(Struct, frozen=True, kw_only=True):
    """One part of the memory. null is 'not planned' or 'not recorded'."""

    part: str
    planned_bytes: int | None
    at_peak_bytes: int | None
    most_bytes: int | None
    """Most bytes at any time: what a plan's figure is to be compared with, because a plan counts
    each part when it is whole."""
    ratio: float | None
    """Planned over the most that was measured; null where either is missing, or too much of the
    peak is of unknown use."""


class RecordedMemory(Struct, frozen=True, kw_only=True):
    """One layout's memory and what was recorded, part by part."""

    layout: str | None
    """null where none fits: there is nothing planned then."""
    recordings: tuple[str, ...]
    rows: tuple[RecordedMemoryRow, ...]
    notes: tuple[str, ...]


class PlanContract(Contract, frozen=True, kw_only=True, tag="stepscope.plan/1"):
    """What `stepscope plan --format json` prints. What is not known is null, never 0. docs/plan.md
    says how it is reckoned."""

    job: Job
    best: Account | None
    """null where no layout fits."""
    layouts: tuple[Account, ...] = ()
    """The fastest first."""
    pareto: tuple[Account, ...] = ()
    """Plans that no other beats in both memory and time."""
    frameworks: tuple[FrameworkRow, ...] = ()
    """The job under each that can write it; empty where one was named."""
    zero_stages: tuple[Variant, ...] = ()
    """One layout under every ZeRO stage, with `--explain zero`."""
    counts: Mapping[str, Count] = field(default_factory=dict)
    """Layouts tried, and how many were left out for what."""
    explained: Account | None = None
    """The layout of --explain."""
    budget: Budget | None = None
    """The answer to --tokens."""
    failures: Failures | None = None
    """The answer to --tokens or --mtbf."""
    what_ifs: tuple[Variant, ...] = ()
    scaling: tuple[Variant, ...] = ()
    largest: Variant | None = None
    smallest: Variant | None = None
    judged_by: JudgedBy = JudgedBy(kind="datasheet", hardware=None)
    assumptions: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """What to do where nothing fits."""
    layout_words: str | None = None
    """The explained or the best layout's name, spelled out part by part."""
    recorded_memory: RecordedMemory | UnsetType = UNSET
    """Present only with --recorded-memory."""


class RecordedRun(Struct, frozen=True, kw_only=True):
    paths: tuple[str, ...]
    width: int
    step_s: float
    step_source: str


class Width(Struct, frozen=True, kw_only=True):
    """The run on so many ranks."""

    nodes: int
    width: int
    data_ranks: int
    source: str
    """measured or derived."""
    step_s: float
    parts_s: Mapping[str, float]
    speedup: float
    efficiency: float
    samples_per_s: float | None
    tokens_per_s: float | None


class Device(Struct, frozen=True, kw_only=True):
    """The recorded step on another device."""

    device: str
    step_s: float
    parts_s: Mapping[str, float]
    """Compute as its kernels scale; all else as recorded."""
    speedup: float
    share_known: float
    """Share of the kernels' time whose work was recorded; other kernels go with the memory's
    rate."""


class PlanRunContract(Contract, frozen=True, kw_only=True, tag="stepscope.plan-run/1"):
    """A recorded run at other widths. What is not known is null."""

    run: RecordedRun
    scaling: str
    """strong or weak."""
    ranks_per_node: int
    widths: tuple[Width, ...]
    devices: tuple[Device, ...]
    """Devices of --what-if device=NAME."""
    methods: tuple[str, ...]
    notes: tuple[str, ...]
