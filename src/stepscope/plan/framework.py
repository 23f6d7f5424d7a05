"""What a framework does with a layout: bytes it keeps, what it overlaps, what it fuses.

Documented, no efficiencies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from msgspec import Struct, convert
from msgspec.json import decode

from stepscope.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Conventions that decide memory and time, apart from the layout itself."""

    name: str
    weight_bytes: float = 2.0
    """Bytes of a weight that products use, kept by each data rank below ZeRO-3."""
    cast_bytes: float = 0.0
    """Bytes of `weight_bytes` that autocast makes for the products: kept for backward, unless all
    of a layer is recomputed."""
    grad_bytes: float = 4.0
    """Bytes of a gradient kept between micro-batches."""
    extra_grad_bytes: float = 0.0
    """Bytes of a second one beside it, in the weights' own precision."""
    plain_grad_bytes: float = 0.0
    """Bytes of another one where data ranks share nothing."""
    copy_bytes: float = 4.0
    """Bytes of the optimizer's own copy of a weight and what else it keeps beside moments."""
    update_bytes: float = 0.0
    """Bytes of what the update makes for its own part of the parameters, when activations have
    gone."""
    sharded_bytes: float = 16.0
    """Bytes of a parameter under ZeRO-3, all together: FSDP keeps weights, gradients and two
    moments in fp32."""
    sharded_grad_bytes: float = 4.0
    """A gradient's part of these."""
    sharded_copy_bytes: float = 0.0
    """The part of these that the optimizer keeps beside its moments."""
    trains_narrow: bool = False
    """Whether there is no copy in fp32 under ZeRO-2 and 3: weights, gradients and moments are as
    the weights were loaded, half as wide."""
    comm_grad_bytes: float = 4.0
    """Bytes in which gradients are reduced."""
    overlaps_data: bool = False
    """Whether gradients are reduced while the last backward runs."""
    overlaps_reduced: bool = False
    """Whether that is so where every data rank keeps all gradients (stage 0) alone: nanotron wraps
    such a model in DDP, whose hook reduces as it goes, and others it reduces after backward."""
    reduces_late: bool = False
    """Whether such gradients alone are reduced after backward (DeepSpeed without ZeRO)."""
    overlaps_tensor: bool = False
    overlaps_pipeline: bool = False
    overlaps_interleaved: bool = False
    """Whether sends between interleaved stages run behind other micro-batches (Megatron-Core, but
    for --no-overlap-p2p-communication)."""
    fuses: bool = True
    """Whether norms, activations, dropout and residuals run as few kernels (by hand or by a
    compiler)."""
    has_fused_update: bool = False
    """Whether the optimizer is one kernel; PyTorch's own, left as it is,
    moves 2.7 times as many bytes."""
    is_compiled: bool = False
    """Whether graphs or a compiler take the host's launches off it."""
    waits: bool = False
    """Whether the host waits for a kernel before it launches the next (CUDA_LAUNCH_BLOCKING=1):
    none of its time is hidden."""
    staged_collective_s: float = 0.0
    """The host's time for a collective between a layer's parts, for each rank of its group, where
    stages lie in different nodes; 0 where that costs no more than in one node."""
    stalled_send_s: float = 0.0
    """Time of a send between stages that stands still, where most published runs did
    (`step_time.py: has_stalled_sends`); it holds up both sides. 0 where none did."""
    attention: int = 2
    """The generation of its one kernel for attention: FlashAttention 1, 2,
    or one made for the newest devices (3, cuDNN)."""
    fuses_experts: bool = False
    """Whether experts' products run as one kernel at a plain product's rate,
    and whole steps as graphs: on Blackwell alone."""
    orders_once: bool = False
    """Whether what sends tokens to experts takes them as they lie, so that they are put into order
    only where they arrive (DeepEP)."""
    weighs_inside: bool = False
    """Whether the router's weights are applied before experts' second product, whose output then
    need not be kept for their gradient (Megatron-Core's weighted_bias_swiglu_impl, torchtitan's
    score_before_experts)."""
    sends_copies: bool = False
    """Whether a token is sent once for each of its experts (Megatron-Core's alltoall dispatcher),
    and not once to a rank or a node (DeepEP, HybridEP)."""
    overlaps_experts: bool = False
    """Whether tokens go to experts and back behind the work of another micro-batch (Megatron-Core's
    overlap_moe_expert_parallel_comm): with one stage or interleaved ones, and nothing recomputed
    whole."""
    logit_passes: float = 48.0
    """Bytes read and written for one logit from head to loss and back:
    51 for PyTorch's own in fp32, measured."""
    has_dropout: bool = False
    accumulates_fused: bool = True
    """Whether gradients are added up inside the products' own kernels."""
    selective_is_ops: bool = False
    """Whether selective recompute means every other product and all that is cheap,
    instead of attention's inside."""
    selective_is_cheap: bool = False
    """Whether it means what is cheap to repeat in a layer with experts: norms and activations,
    whose outputs are then not kept. Of other layers Megatron-Core repeats attention alone
    (`recompute_modules`), which frees nothing where one kernel does it."""
    groups_checkpoints: bool = False
    """Whether full recomputation can have a checkpoint for several layers."""
    balances_stages: bool = False
    """Whether the stages with embedding and head get fewer layers."""
    balances_even: bool = True
    """Whether they do so too where layers divide evenly by stages."""
    fills_stages: bool = False
    """Whether stages are filled by what blocks cost, up to equal shares, so that some can be left
    empty (nanotron's build_model)."""
    fills_pipeline: bool = False
    """Whether a step must have a micro-batch for every stage but one (nanotron's engine asserts
    it: of 105 published layouts with fewer none ran)."""
    keeps_gathered_stages: bool = False
    """Whether, with several stages, weights that ZeRO-3 gathered stay whole until the last
    micro-batch, and gradients beside them (torchtitan's reshard_after_forward)."""
    copies_gathered: bool = False
    """Whether ZeRO-3's weights are copied out of the buffer they were gathered in, and gradients
    into one (FSDP2; FSDP's first version has views of it)."""
    gathers_narrow: bool = False
    """Whether ZeRO-3's weights for products in 8 bits are gathered in 8 bits (torchtitan's
    enable_fsdp_float8_all_gather, as its recipes for float8 have it)."""
    gathers_each: bool = False
    """Whether under ZeRO-2 too weights are gathered for each micro-batch, and stay from its forward
    until its backward (FSDP's reshard_after_forward=False); others gather once, after the
    update."""
    logit_bytes: float = 10.0
    """Bytes per logit at the loss: the product's own, an fp32 copy, and its gradient. PyTorch's own
    loss on logits in fp32 has 12: backward holds the saved softmax and two gradients."""
    parallel_logit_bytes: float = 14.0
    """The same where tensor ranks share the vocabulary: the softmax is kept in fp32 too."""
    frees_grads: bool = False
    """Whether gradients are let go after the update (set_to_none), so that a step of one
    micro-batch has none while it holds its activations."""
    kept_logit_bytes: float = 0.0
    """Bytes per logit of the micro-batch before, which the loop still refers to while the next one
    runs."""
    keeps_narrow_inputs: bool = False
    """Whether products in 8 bits keep their inputs so until backward (Transformer Engine), and not
    as they came (torchao's Float8Linear)."""
    kept_gathered: float = 0.0
    """Share of a layer's gathered inputs that stay whole until backward under sequence parallelism;
    else they are gathered again."""
    gathers_again: bool = False
    """Whether backward gathers a layer's two inputs again, behind the product that makes their
    gradients."""
    late_gathered: float = 0.0
    """Share of a layer's gathered inputs that the allocator cannot give out again in time: they
    were used on a stream of their own, and the host is ahead of the device."""
    schedules: tuple[str, ...] = ("1f1b", "gpipe")
    """Pipeline schedules that it has; 1f1b interleaved too."""
    scatters_sends: bool = True
    """Whether tensor ranks each send their part of an activation to the next stage."""
    pads_vocab: bool = False
    """Whether the vocabulary is filled up so that tensor ranks have equal, even parts."""
    drops_rest: bool = False
    """Whether tokens that do not come out even are left off instead, as code for measuring does."""
    usual_recompute: str | None = None
    """What a run recomputes that says nothing of it, where the framework's default is kept;
    None where people choose by what fits."""
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    """What data ranks can share: FSDP's 3 with weights let go after forward, else 2."""
    staged_zero_stages: tuple[int, ...] = (0, 1, 3)
    """What they can share where the model is cut into stages."""
    cuts_layers: bool = True
    """Whether layers are cut over tensor ranks, and experts spread over ranks."""
    shares_sequence: bool = False
    """Whether tensor ranks share the sequence whenever there are any (torchtitan)."""
    has_context: bool = True
    has_sequence: bool = True
    has_stages: bool = True
    offloads: tuple[str, ...] = ()
    """What it can keep on the host: optimizer, all. Any job may be asked what that would give."""
    shards_alone: bool = False
    """Whether what is offloaded goes through ZeRO, which one rank can be under by itself."""
    frees_offloaded: bool = False
    """Whether gradients leave the device during backward where their states are offloaded; else
    they stay until the update."""
    bucket_bytes: float = 0.0
    """Bytes per parameter of buckets that gradients are copied to before they cross."""
    has_late_states: bool = False
    """Whether the optimizer makes its states at the first update (PyTorch's own), in blocks that
    were made for activations and logits (`reserved.py`)."""
    has_grad_stream: bool = False
    """Whether sharded gradients are made on a stream of their own (FSDP reduces and widens them
    there): the allocator gives one stream's blocks to no other."""
    idle_logit_bytes: float = 0.0
    """Bytes per logit of the copy in half precision: it has gone when the loss makes its gradients
    in fp32, and none of them fits into its block."""
    logged_memory: str = "reserved"
    """What the peak is of that a run writes down, where nobody says (`rows.py: MEMORY_OF`):
    nanotron's rank 0 writes its own (`log_throughput`), and is in the first stage."""
    extra_activation: float = 0.0
    """Kept per token and channel of each layer, in bytes, beyond what half precision needs."""


COMPILED_LOSS: dict[str, object] = {
    "logit_bytes": 4.0, "idle_logit_bytes": 0.0, "logit_passes": 12.0,
}  # fmt: skip
"""What changes where a compiler takes the loss in: logits stay in half precision, and so does their
gradient."""


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """A framework of frameworks.json."""

    name: str
    conventions: dict[str, object]
    """Where they are not those of `base`, or the usual ones."""
    base: str | None = None
    about: str = ""
    grads: dict[str, tuple[str, dict[str, object]]] = {}
    """Setting by width that keeps gradients so, and what it changes. Where FSDP's weights are in 16
    bits, its moments are too."""


def _read(entries: Iterable[_Entry]) -> dict[str, Framework]:
    made: dict[str, Framework] = {}
    for entry in entries:
        assert entry.conventions.keys() <= Framework.__dataclass_fields__.keys(), entry.name
        usual = asdict(made[entry.base]) if entry.base else {}
        made[entry.name] = convert(usual | entry.conventions | {"name": entry.name}, Framework)
    return made


_ENTRIES = decode(Path(__file__).with_name("frameworks.json").read_bytes(), type=list[_Entry])
_GRADS = {(entry.name, width): kept for entry in _ENTRIES for width, kept in entry.grads.items()}
_NAMED = _read(_ENTRIES)
MEGATRON, MEGATRON_CORE = _NAMED["megatron"], _NAMED["megatron-core"]
MEGATRON_DEEPSPEED, DEEPSPEED = _NAMED["megatron-deepspeed"], _NAMED["deepspeed"]
NANOTRON, TORCHTITAN = _NAMED["nanotron"], _NAMED["torchtitan"]
FSDP, DDP = _NAMED["fsdp"], _NAMED["ddp"]
COMPOSER, AUTOMODEL, INTERNEVO = _NAMED["composer"], _NAMED["automodel"], _NAMED["internevo"]
FRAMEWORKS = tuple(framework for framework in _NAMED.values() if framework is not AUTOMODEL)
"""AUTOMODEL is known of published results alone."""


def find_framework(name: str) -> Framework | None:
    """Framework by its own name."""
    return next((framework for framework in FRAMEWORKS if framework.name == name), None)


GRADS = ("bf16", "fp32")
"""Precisions that gradients are kept and reduced in; the first is 16 bits, of whatever kind."""


def grads_setting(framework: Framework, grads: str) -> str | None:
    """What keeps gradients in that width there; None where nothing does."""
    setting, _ = _GRADS.get((framework.name, grads), (None, {}))
    return setting


def with_grads(framework: Framework, grads: str) -> Framework:
    """The framework with gradients kept in that width; UsageError where it cannot."""
    if (framework.name, grads) not in _GRADS:
        can = sorted(name for name, width in _GRADS if width == grads)
        raise UsageError(f"{framework.name} keeps no gradients in {grads}; {', '.join(can)} do")
    return replace(framework, **_GRADS[framework.name, grads][1])  # type: ignore[arg-type]
