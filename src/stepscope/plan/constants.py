"""A few efficiencies that datasheets do not give, the same for every model, cluster and source.

Each says where it comes from. Those marked *fitted* were set on some of the published results
alone, which docs/planner.md names; the figures there are on the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.hardware.links import COLLECTIVE_S, LINK_SHARE, NETWORK_FALL, NETWORK_SHARE

MICRO = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Shares are of the datasheet's figure."""

    # Matrix products.
    gemm_share: float = 0.82
    """Share of the peak that a large product reaches up to Ampere: an A100 does about 255 of 312
    TFLOP/s for long."""
    gemm_share_hopper: float = 0.70
    """Hopper and later run into their power limit first: products of random numbers, measured
    for a quarter of a second each on an H200, come to 650-685 of 989."""
    gemm_share_blackwell: float = 0.46
    """B200, 1,000 W: 1,080 to 1,110 of 2,250 in the middle of 250 products of over a TFLOP each,
    run one after the other (SimuMax, configs/system/b200_bf16_ceperm.json), and 6 % less in a step:
    so much its steps take longer than the sum of its measured operators (*fitted* on these). Single
    products reach 1,745 (ml-engineering, MAMF) before the power limit bites."""
    gemm_share_cdna3: float = 0.52
    """MI300X: 668 of 1,307 with tuned kernels (ml-engineering, MAMF), 724 to 765 (Primus,
    node-smoke.md: the median of 6 nodes)."""
    gemm_share_cdna4: float = 0.55
    """MI355X: 1,565 of 2,517 at best (the same); *assumed* a tenth less for running on."""
    gemm_share_fp8_cdna: float = 0.42
    """*Assumed*: no figure of products in a row is at hand. Products in 16 bits reach 0.5 to 0.55,
    and on Hopper and Blackwell 8 bits come to nine tenths of that share or less."""
    gemm_share_fp8: float = 0.62
    """1,160 to 1,240 of 1,979, there too."""
    gemm_share_fp8_blackwell: float = 0.64
    """*Fitted* on Megatron-Bridge's Llama 70B, beside what 8 bits cost to write: its 8B, which has
    twice as much of that for its arithmetic, then is 2 % off (3 % with both in one share)."""
    gemm_share_fp4: float = 0.38
    """*Fitted* likewise: with the layers that stay in 8 or 16 bits and the scaling of blocks."""
    half_k: float = 150.0
    """Inner size at which a product reaches half of that: its tiles need filling and draining
    (H200: 525 TFLOP/s at 512, 590 at 1,024, 645 at 2,048: 130 there; *fitted* a little higher)."""
    wave_tail: float = 0.5
    """Share of the last wave's empty places that time is lost for; the rest is hidden by smaller
    tiles and split sums."""

    power_exponent: float = 0.75
    """Rates of products on devices that are bound by power go with their power to this: a third of
    it is spent whatever the clock. *Fitted* on two pairs: GB300 against GB200, 1,400 against 1,200
    W, 1.12 to 1.22 times as fast (Megatron-Bridge); H100 at 500 instead of 700 W (torchtitan)."""

    power_exponent_cdna3: float = 0.56
    """The same of CDNA 3: MI325X with 1,000 W reaches 785 TFLOP/s, MI300X with 750 W 668, at one
    peak (MAMF)."""

    scalar_share: float = 0.45
    """Share of the fp32 peak that batched products of 16 bits reach which go past the tensor cores.
    *Fitted* on BLOOM's A100s: 128 heads of 108 instead of 64 of 216 cost 44 s a step, which is 9
    TFLOP/s."""

    # Memory.
    stream_share: float = 0.80
    """Share of the bandwidth that a kernel reaches which only reads and writes."""
    stream_share_blackwell: float = 0.60
    """B200: permutations reach 0.50 of the rate, the loss in one kernel 0.32 (SimuMax)."""
    unfused_passes: float = 1.8
    """Where norms, activations, dropout and residuals are kernels of their own: so many times
    what fused ones move, and norms and casts reach half the bandwidth of a copy (H200)."""

    # Attention in one kernel, of the 16-bit peak, causal pairs counted once. By kernel:
    # FlashAttention 2 or older; newer ones for Hopper. H200, heads of 128: 290-317 and 520-580
    # TFLOP/s forward, 260-318 and 445-525 backward.
    flash_share: float = 0.62
    """Share reached up to Ampere: 190-200 of an A100's 312 TFLOP/s forward (Dao 2023)."""
    flash_share_hopper: float = 0.325
    fused_share_hopper: float = 0.59
    fused_share_blackwell: float = 0.52
    """B200, cuDNN: 0.50 to 0.60 at 32 and 131 thousand tokens, 0.48 to 0.55 at 4,096 with 64 heads
    and more (SimuMax, as above; causal pairs counted once)."""
    flash_share_cdna: float = 0.33
    """*Assumed*: what FlashAttention 2 reaches of Hopper's peak. No published rate was at hand."""
    flash_backward: float = 0.82
    """Share of the forward's rate: 0.88 on the H200, *fitted* a little lower."""
    attention_half: float = 400.0
    """Length at which half of that is reached; of the part that is there at a time,
    where ranks pass keys around."""
    narrow_heads: float = 0.78
    """Heads of 64 or less reach so much of that."""
    first_flash: float = 0.55
    """FlashAttention 1 and kernels made after it reach so much of the second's rate, whatever
    the heads: 25 to 40 % of the peak instead of 50 to 73 (Dao 2023)."""

    # Links. What has no figure here has it in hardware/links.py.
    link_share: float = LINK_SHARE
    collective_s: float = COLLECTIVE_S
    gather_s: float = 22 * MICRO
    """Seconds to start a gather or a scatter alone: 45 to 47 us over 8 H100s up to 4 MB, of which
    hops are 24 (nccl-tests' output in SimuMax, nccl_fit.py), and 23 to 26 over B200s (its system
    file)."""
    network_share: float = NETWORK_SHARE
    exchange_share: float = 0.90
    """Share of a network card that tokens reach on their way to experts, which no ring holds up:
    DeepEP has 90 GB/s over two nodes and 61 over four on cards of 50, what stays in a node
    included, so 45 and 46 by card (its README); NCCL's sends 46 to 48 (NVIDIA/nccl-tests issues 267
    and 290)."""
    network_fall: float = NETWORK_FALL
    network_latency: float = 2.0
    """Times the latency between nodes, when all ranks send at once. *Fitted*."""
    overlap: float = 0.85
    """Share of the work meanwhile that a transfer can hide behind: both want the device's memory
    and some of its cores."""

    contention: float = 0.19
    """Share of a transfer's time that the work it hides behind takes longer: 18.9 % in the mean
    over A100, H100, MI210 and MI250 (Lee et al. 2025, arXiv 2507.03114)."""

    # The host.
    host_layer_s: float = 1300 * MICRO
    """Seconds to launch one layer's forward. *Fitted*, as is all of the host's."""
    host_backward: float = 1.3
    """Times that for its backward."""
    host_mixture: float = 2.0
    """A layer with experts has so many times the launches: router, sorting, exchange,
    grouped products."""
    host_collective_s: float = 90 * MICRO
    """Seconds to launch one collective between layers' parts."""
    host_unfused: float = 4.0
    """Times that where a framework hands tensors to and fro around each collective."""
    host_send_s: float = 500 * MICRO
    """Seconds to hand a micro-batch on to the next stage and get one, each way."""
    jitter: float = 0.0
    """Ranks wait for the slowest of them: a share of the step for each doubling of nodes."""

    # Memory of the device.
    context_bytes: float = 0.7e9
    """The driver's own, which no allocator counts: 0.5 to 2 GiB."""
    group_bytes: float = 0.4e9
    """NCCL's buffers for each kind of group, outside the allocator too: 1 to 2 GiB in all."""
    fragmentation: float = 1.04
    """Reserved over allocated, the mean of 344 ranks."""
    broken_share: float = 0.15
    """Share of states made at the first update that they leave of the blocks that they lie in. The
    allocator's own rules, fed with what PyTorch asks for in two steps of 24 llamas, plain and under
    FSDP2: 0.0 to 0.5."""
    broken_share_recomputed: float = 0.25
    """The same where all layers are recomputed and most blocks are the logits': 8 llamas, 0.0 to
    0.6."""
    pipeline_slack: float = 0.06
    """Share of activations that is held beside them where stages receive and free micro-batches in
    turn: reserved over allocated is 1.03 with one stage and 1.06 with two on B200s (SimuMax's
    llamas). *Fitted* on nanotron's sweep, where stages without tensor ranks have 0.00 to 0.06."""


DEFAULT = Constants()
