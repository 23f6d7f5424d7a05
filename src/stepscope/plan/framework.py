"""What a framework does with a layout: bytes it keeps, what it overlaps, what it fuses.

Documented, no efficiencies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Under ZeRO-3, all of a parameter together: FSDP keeps weights,
    gradients and two moments in fp32."""
    sharded_grad_bytes: float = 4.0
    """A gradient's part of these."""
    sharded_copy_bytes: float = 0.0
    """The part of these that the optimizer keeps beside its moments."""
    trains_narrow: bool = False
    """Whether there is no copy in fp32 under ZeRO-2 and 3: weights, gradients and moments are as
    the weights were loaded, half as wide."""
    comm_grad_bytes: float = 4.0
    """In which gradients are reduced."""
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
    gathers_each: bool = False
    """Whether under ZeRO-2 too weights are gathered for each micro-batch, and stay from its forward
    until its backward (FSDP's reshard_after_forward=False); others gather once, after the
    update."""
    logit_bytes: float = 10.0
    """Per logit at the loss: the product's own, an fp32 copy, and its gradient."""
    parallel_logit_bytes: float = 14.0
    """The same where tensor ranks share the vocabulary: the softmax is kept in fp32 too."""
    frees_grads: bool = False
    """Whether gradients are let go after the update (set_to_none), so that a step of one
    micro-batch has none while it holds its activations."""
    kept_logit_bytes: float = 0.0
    """Per logit of the micro-batch before, which the loop still refers to while the next one
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
    """Per parameter, of buckets that gradients are copied to before they cross."""
    has_late_states: bool = False
    """Whether the optimizer makes its states at the first update (PyTorch's own), in blocks that
    were made for activations and logits (`reserved.py`)."""
    has_grad_stream: bool = False
    """Whether sharded gradients are made on a stream of their own (FSDP reduces and widens them
    there): the allocator gives one stream's blocks to no other."""
    idle_logit_bytes: float = 0.0
    """Per logit, of the copy in half precision: it has gone when the loss makes its gradients in
    fp32, and none of them fits into its block."""
    extra_activation: float = 0.0
    """Kept per token and channel of each layer, in bytes, beyond what half precision needs."""


EAGER_LOGIT_BYTES = 12.0
"""Bytes of PyTorch's own loss on logits in fp32: backward holds the saved softmax and two
gradients."""

MEGATRON = Framework(
    name="megatron",
    groups_checkpoints=True,
    has_fused_update=True,
    has_dropout=True,
    pads_vocab=True,
    zero_stages=(0,),
    has_context=False,
    has_sequence=False,
)
"""Megatron-LM as of 2021."""
MEGATRON_CORE = Framework(
    name="megatron-core",
    groups_checkpoints=True,
    has_fused_update=True,
    keeps_narrow_inputs=True,
    attention=3,
    fuses_experts=True,
    sends_copies=True,
    weighs_inside=True,
    logit_passes=24.0,
    selective_is_cheap=True,
    overlaps_data=True,
    overlaps_tensor=True,
    overlaps_interleaved=True,
    balances_stages=True,
    balances_even=False,
    pads_vocab=True,
    zero_stages=(0, 1, 2, 3),
    staged_zero_stages=(0, 1),
    offloads=("optimizer",),
)
MEGATRON_DEEPSPEED = Framework(
    name="megatron-deepspeed",
    has_fused_update=True,
    has_dropout=True,
    grad_bytes=2.0,
    extra_grad_bytes=2.0,
    comm_grad_bytes=2.0,
    accumulates_fused=False,
    pads_vocab=True,
    has_context=False,
    frees_offloaded=True,
    offloads=("optimizer", "all"),
)
DEEPSPEED = Framework(
    name="deepspeed",
    has_fused_update=True,
    overlaps_data=True,
    fuses=False,
    grad_bytes=2.0,
    comm_grad_bytes=2.0,
    sharded_grad_bytes=2.0,
    sharded_copy_bytes=4.0,
    plain_grad_bytes=4.0,
    reduces_late=True,
    attention=3,
    accumulates_fused=False,
    logit_bytes=EAGER_LOGIT_BYTES,
    cuts_layers=False,
    has_context=False,
    has_sequence=False,
    has_stages=False,
    offloads=("optimizer", "all", "nvme"),
    shards_alone=True,
    frees_offloaded=True,
)
"""A model of one's own in PyTorch under DeepSpeed's engine: weights, and under any ZeRO stage from
the first on gradients too, in the precision that is switched on (`get_data_types`, where
grad_accum_dtype is not said). Without ZeRO it adds them up in fp32 beside that."""
NANOTRON = Framework(
    name="nanotron",
    extra_grad_bytes=2.0,
    fuses=False,
    accumulates_fused=False,
    overlaps_reduced=True,
    staged_collective_s=350e-6,
    stalled_send_s=0.28,
    balances_stages=True,
    scatters_sends=False,
    parallel_logit_bytes=10.5,
    kept_logit_bytes=4.0,
    gathers_again=True,
    late_gathered=1.9,
    fills_stages=True,
    fills_pipeline=True,
    pads_vocab=True,
    usual_recompute="none",
    zero_stages=(0, 1),
)
"""With stages in different nodes the host needs 2.8 ms for a layer, there and back, for each
tensor rank: at least 9, 13, 21, 46 and 116 ms with 2 to 32 of them, the same for 1 and 8 billion
parameters, 2 to 32 stages and 2 to 32 nodes (the ultra-scale sweep; *fitted*). Its gathers are
asynchronous: where the host is ahead, 1.1 to 1.9 of a layer's two gathered inputs stay reserved,
and none where it is not (the same). A send that stalls takes 0.28 s, whatever it carries: half of
the 282 runs that stall have 0.27 to 0.31, for 2 to 32 stages, both models, all tensor widths."""
TORCHTITAN = Framework(
    name="torchtitan",
    logit_bytes=EAGER_LOGIT_BYTES,
    has_late_states=True,
    has_grad_stream=True,
    idle_logit_bytes=2.0,
    weighs_inside=True,
    has_fused_update=True,
    overlaps_data=True,
    overlaps_pipeline=True,
    fuses=False,
    selective_is_ops=True,
    keeps_gathered_stages=True,
    copies_gathered=True,
    gathers_each=True,
    schedules=("1f1b", "gpipe", "zb1p", "zbv"),
    zero_stages=(0, 2, 3),
    shares_sequence=True,
    offloads=("all",),
    frees_offloaded=True,
)
FSDP = Framework(
    name="fsdp",
    groups_checkpoints=True,
    has_fused_update=True,
    attention=3,
    overlaps_data=True,
    fuses=False,
    comm_grad_bytes=2.0,
    logit_bytes=EAGER_LOGIT_BYTES,
    frees_grads=True,
    copies_gathered=True,
    gathers_each=True,
    has_late_states=True,
    has_grad_stream=True,
    idle_logit_bytes=2.0,
    usual_recompute="none",
    zero_stages=(2, 3),
    cuts_layers=False,
    has_context=False,
    has_sequence=False,
    has_stages=False,
    offloads=("all",),
    shards_alone=True,
    frees_offloaded=True,
)
COMPOSER = replace(
    FSDP,
    name="composer",
    has_fused_update=False,
    attention=1,
    logit_passes=12.0,
    logit_bytes=4.0,
    idle_logit_bytes=0.0,
    copies_gathered=False,
)
"""Composer and LLM Foundry as of 2023: FSDP, a Triton kernel after FlashAttention 1, and the
loss in one kernel that reads logits in half precision once each way."""
AUTOMODEL = replace(
    FSDP,
    name="automodel",
    has_fused_update=False,
    fuses=True,
    orders_once=True,
    weighs_inside=True,
    trains_narrow=True,
    keeps_gathered_stages=True,
    comm_grad_bytes=4.0,
    logit_passes=24.0,
    logit_bytes=6.0,
    idle_logit_bytes=0.0,
    usual_recompute=None,
    has_stages=True,
)
"""NeMo AutoModel as its benchmarks are configured (examples/llm_benchmark): FSDP2 over models
loaded in bf16 with PyTorch's Adam, gradients reduced in fp32, Transformer Engine's kernels, DeepEP,
and the loss in bf16."""
INTERNEVO = Framework(
    name="internevo",
    overlaps_data=True,
    grad_bytes=2.0,
    comm_grad_bytes=2.0,
    update_bytes=12.0,
    attention=1,
    fuses=False,
    accumulates_fused=False,
    zero_stages=(0, 1, 3),
)
"""As of 2023. At the update its own part of the gradients is there again in fp32
(hybrid_zero_optim.py, fsdp_optimizer.py), and PyTorch's AdamW of that time makes two more
tensors of that size over all parameters at once: the root and the denominator."""
DDP = Framework(
    name="ddp",
    groups_checkpoints=True,
    has_fused_update=True,
    overlaps_data=True,
    fuses=False,
    attention=3,
    weight_bytes=6.0,
    cast_bytes=2.0,
    has_late_states=True,
    idle_logit_bytes=2.0,
    grad_bytes=4.0,
    bucket_bytes=4.0,
    copy_bytes=0.0,
    logit_bytes=EAGER_LOGIT_BYTES,
    frees_grads=True,
    extra_activation=4.0,
    usual_recompute="none",
    zero_stages=(0,),
    cuts_layers=False,
    has_context=False,
    has_sequence=False,
    has_stages=False,
)
"""Plain PyTorch: fp32 weights under autocast,
which keeps a copy of each in half precision and the residuals in fp32. Several ranks have
gradients twice: DDP's buckets stay, and what micro-batches add up lies beside them even with
gradient_as_bucket_view."""

FRAMEWORKS = (
    MEGATRON,
    MEGATRON_CORE,
    MEGATRON_DEEPSPEED,
    DEEPSPEED,
    NANOTRON,
    TORCHTITAN,
    FSDP,
    COMPOSER,
    INTERNEVO,
    DDP,
)


def find_framework(name: str) -> Framework | None:
    """By its own name."""
    return next((framework for framework in FRAMEWORKS if framework.name == name), None)


GRADS = ("bf16", "fp32")
"""That gradients are kept and reduced in; the first is 16 bits, of whatever kind."""
_KEPT: dict[tuple[str, str], tuple[str, dict[str, object]]] = {
    ("megatron-core", "bf16"): (
        "--grad-reduce-in-bf16",
        {"grad_bytes": 2.0, "comm_grad_bytes": 2.0},
    ),
    ("megatron-core", "fp32"): ("the default with --bf16", {}),
    ("deepspeed", "bf16"): ("the default under ZeRO", {}),
    ("deepspeed", "fp32"): (
        '"data_types": {"grad_accum_dtype": "fp32"}',
        {"extra_grad_bytes": 4.0, "sharded_grad_bytes": 6.0, "sharded_bytes": 20.0},
    ),
    ("fsdp", "bf16"): ("weights in bfloat16 before fully_shard", {"trains_narrow": True}),
    ("fsdp", "fp32"): ("the default with weights in fp32", {}),
    ("torchtitan", "bf16"): ("--training.dtype bfloat16", {"trains_narrow": True}),
    ("torchtitan", "fp32"): ("the default", {}),
    ("nanotron", "bf16"): (
        "accumulate_grad_in_fp32: false",
        {"grad_bytes": 2.0, "extra_grad_bytes": 0.0, "comm_grad_bytes": 2.0},
    ),
    ("nanotron", "fp32"): ("the default (accumulate_grad_in_fp32)", {}),
    ("ddp", "fp32"): ("as its weights are", {}),
    ("internevo", "bf16"): ("the default", {}),
}
"""By framework and width: the setting that keeps gradients so, and what it changes. Where FSDP's
weights are in 16 bits, its moments are too."""


def grads_setting(framework: Framework, grads: str) -> str | None:
    """What keeps gradients in that width there; None where nothing does."""
    setting, _ = _KEPT.get((framework.name, grads), (None, {}))
    return setting


def with_grads(framework: Framework, grads: str) -> Framework:
    """The framework with gradients kept in that width; UsageError where it cannot."""
    if (framework.name, grads) not in _KEPT:
        can = sorted(name for name, width in _KEPT if width == grads)
        raise UsageError(f"{framework.name} keeps no gradients in {grads}; {', '.join(can)} do")
    return replace(framework, **_KEPT[framework.name, grads][1])  # type: ignore[arg-type]
