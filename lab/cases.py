"""The lab's cases: for each, the run as it is, the run with its mend, and what an honest tool may say of it.

A fault's mend gives a real gain. A look-alike shows the signature of the codes in `no_gain_from`, and mending it was
measured to give less than 3 %. What each really gave is in truth.json, never here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lab import loops
from lab.measure import Plan, Run

STEADY = Plan()
LOADER = Plan(rounds=1, warm=40, steps=48, mean=True)
COMPILE = Plan(rounds=3, warm=6, steps=10)
LONG = Plan(rounds=2, warm=3, steps=10)
# mobilenet_v2 cut after its fourth stage.
SHORT = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2], [6, 64, 2, 2]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`also` are further mends, timed and not recorded; `cause` says which of them mends the true cause of a look-alike.

    `same_as` names the trace of another case that is this one's mended run; it is not recorded twice.
    """

    model: str
    bounds: tuple[str, ...]
    causes: tuple[str, ...] = ()
    no_gain_from: tuple[str, ...] = ()
    fix: str
    slow: Callable[[], Run]
    fixed: Callable[[], Run]
    also: Mapping[str, Callable[[], Run]] = field(default_factory=dict)
    cause: str | None = None
    plan: Plan = STEADY
    held_out: bool = False
    same_as: str | None = None
    record_fixed: bool = True


FAULTS: dict[str, Case] = {
    "vit_serial_augment": Case(
        model="torchvision VisionTransformer, 4 layers",
        bounds=("data",),
        causes=("serial-loader",),
        fix="num_workers 0 -> 12 (augmentation in the main process)",
        slow=lambda: loops.vit_photos(workers=0),
        fixed=lambda: loops.vit_photos(workers=12),
        plan=LOADER,
    ),
    "unet_starved_io": Case(
        model="diffusion U-Net",
        bounds=("data",),
        causes=("starved-loader",),
        fix="num_workers 3 -> 24 (slow reads: the workers sleep)",
        slow=lambda: loops.unet(workers=3, read_ms=6),
        fixed=lambda: loops.unet(workers=24, read_ms=6),
        plan=LOADER,
        held_out=True,
    ),
    "resnet18_pageable": Case(
        model="torchvision resnet18",
        bounds=("transfer", "compute", "memory"),
        causes=("pageable-copy",),
        fix="pin memory + non_blocking",
        slow=lambda: loops.resnet_copy(pin=False),
        fixed=lambda: loops.resnet_copy(pin=True),
        same_as="resnet18_copy_in_the_way.slow",
    ),
    "resnet18_copy_in_the_way": Case(
        model="torchvision resnet18",
        bounds=("memory", "compute", "transfer"),
        causes=("unoverlapped-copy",),
        fix="next batch copied on a side stream",
        slow=lambda: loops.resnet_copy(pin=True),
        fixed=lambda: loops.resnet_copy(pin=True, side_stream=True),
    ),
    "moe_nonzero_sync": Case(
        model="mixture of experts, 2 layers of 8",
        bounds=("host", "memory"),
        causes=("device-sync",),
        fix="fixed-capacity top-k routing in place of nonzero; no loss.item()",
        slow=lambda: loops.mixture(synced=True),
        fixed=lambda: loops.mixture(synced=False),
        held_out=True,
    ),
    "lstm_cell_loop": Case(
        model="LSTM language model",
        bounds=("host",),
        causes=("launch-overhead",),
        fix="loop of LSTMCell -> nn.LSTM (cuDNN)",
        slow=lambda: loops.lstm(cells=True, layers=1, dim=512, seq=64),
        fixed=lambda: loops.lstm(cells=False, layers=1, dim=512, seq=64),
    ),
    "gan_looped_adam": Case(
        model="convolutional GAN, two optimizers",
        bounds=("host",),
        causes=("looped-optimizer",),
        fix="Adam foreach=False -> fused=True, both optimizers",
        slow=lambda: loops.gan(looped=True),
        fixed=loops.gan,
    ),
    "bert_fp32": Case(
        model="transformers BERT, 3 layers",
        bounds=("compute",),
        causes=("fp32-matmul",),
        fix='set_float32_matmul_precision("high")',
        slow=lambda: loops.bert_run(layers=3, amp=False),
        fixed=lambda: loops.bert_run(layers=3, amp=False, matmul="high"),
        also={"bf16 autocast": lambda: loops.bert_run(layers=3)},
        held_out=True,
    ),
    "gpt2_eager_attention": Case(
        model="transformers GPT-2, 4 layers",
        bounds=("memory",),
        causes=("unfused-attention",),
        fix='attn_implementation "eager" -> "sdpa"',
        slow=lambda: loops.gpt2_run(batch=16, attn="eager"),
        fixed=lambda: loops.gpt2_run(batch=16),
    ),
    "resnet50_nchw": Case(
        model="torchvision resnet50",
        bounds=("compute", "memory"),
        causes=("nchw-layout",),
        fix="channels_last",
        slow=lambda: loops.conv_net("resnet50", batch=128, channels_last=False, amp=True),
        fixed=lambda: loops.conv_net("resnet50", batch=128, channels_last=True, amp=True),
    ),
    "llama_empty_cache": Case(
        model="transformers Llama, 4 layers",
        bounds=("host",),
        causes=("allocator-churn",),
        fix="no empty_cache() in the loop",
        slow=lambda: loops.llama_run(empty_cache=True),
        fixed=loops.llama_run,
        plan=Plan(rounds=1, warm=8, steps=30),
    ),
    "bert_save_each_step": Case(
        model="transformers BERT, 2 layers",
        bounds=("host", "transfer"),
        causes=("checkpoint-stall",),
        fix="no torch.save in the step",
        slow=lambda: loops.bert_run(layers=2, dim=512, batch=16, seq=128, save=True),
        fixed=lambda: loops.bert_run(layers=2, dim=512, batch=16, seq=128),
        plan=LONG,
    ),
    "unet_anomaly_mode": Case(
        model="diffusion U-Net",
        bounds=("host",),
        causes=("debug-mode",),
        fix="detect_anomaly off",
        slow=lambda: loops.unet_anomaly(anomaly=True),
        fixed=lambda: loops.unet_anomaly(anomaly=False),
    ),
    "recsys_history_copies": Case(
        model="recommender over item histories",
        bounds=("transfer", "host"),
        causes=("many-small-copies",),
        fix="lists padded on the host, one pinned copy",
        slow=lambda: loops.histories(pad_on_host=False),
        fixed=lambda: loops.histories(pad_on_host=True),
        held_out=True,
    ),
    "albert_casts": Case(
        model="one wide layer applied 8 times (ALBERT-like)",
        bounds=("memory", "compute"),
        causes=("dtype-casts",),
        fix="weights cast once a step (autocast cache_enabled=True)",
        slow=lambda: loops.shared_layers(keep_casts=False),
        fixed=lambda: loops.shared_layers(keep_casts=True),
    ),
    "llama_wide_logits": Case(
        model="transformers Llama, 1 layer, 128k vocabulary",
        bounds=("memory", "compute"),
        causes=("wide-logits",),
        fix="head and cross entropy compiled together: no fp32 logits in memory",
        slow=lambda: loops.llama_vocabulary(fused_loss=False),
        fixed=lambda: loops.llama_vocabulary(fused_loss=True),
        plan=COMPILE,
    ),
    "cnn_pointwise": Case(
        model="CNN with hand-written Mish and gates",
        bounds=("memory",),
        causes=("unfused-pointwise",),
        fix="torch.compile fuses the pointwise chains",
        slow=lambda: loops.mish(compiled=False),
        fixed=lambda: loops.mish(compiled=True),
        plan=COMPILE,
    ),
    "bert_recompute": Case(
        model="transformers BERT, 4 layers",
        bounds=("compute", "memory"),
        causes=("needless-recompute",),
        fix="gradient checkpointing off: it fits",
        slow=lambda: loops.bert_run(dim=1024, seq=512, batch=48, recompute=True),
        fixed=lambda: loops.bert_run(dim=1024, seq=512, batch=48),
    ),
    "gpt2_odd_vocabulary": Case(
        model="transformers GPT-2, 2 layers",
        bounds=("compute", "memory"),
        causes=("misaligned-shapes",),
        fix="vocabulary padded 50257 -> 50304",
        slow=lambda: loops.gpt2_run(layers=2, vocab=50257),
        fixed=lambda: loops.gpt2_run(layers=2, vocab=50304),
    ),
    "llama_host_optimizer": Case(
        model="transformers Llama, 2 layers",
        bounds=("transfer", "host"),
        causes=("host-offload",),
        fix="AdamW state and update on the device: they fit",
        slow=lambda: loops.llama_offload(offload=True),
        fixed=lambda: loops.llama_offload(offload=False),
        plan=LONG,
    ),
    "vit_gc_each_step": Case(
        model="torchvision VisionTransformer, 4 layers",
        bounds=("host",),
        causes=("gc-pause",),
        fix="no gc.collect() in the step",
        slow=lambda: loops.vit_device(batch=64, after=[loops.collector(300_000)]),
        fixed=lambda: loops.vit_device(batch=64),
        plan=Plan(rounds=1, warm=6, steps=25),
    ),
    "mobilenet_nchw_fp32": Case(
        model="torchvision mobilenet_v2, short",
        bounds=("memory", "compute"),
        causes=("nchw-layout",),
        fix="channels_last",
        slow=lambda: loops.conv_net("mobilenet_v2", batch=128, channels_last=False, amp=False, inverted_residual_setting=SHORT),
        fixed=lambda: loops.conv_net("mobilenet_v2", batch=128, channels_last=True, amp=False, inverted_residual_setting=SHORT),
    ),
    "upscaler_nchw_fp32": Case(
        model="super-resolution CNN, 16 channels",
        bounds=("memory", "compute"),
        causes=("nchw-layout",),
        fix="channels_last",
        slow=lambda: loops.upscale(channels_last=False),
        fixed=lambda: loops.upscale(channels_last=True),
    ),
    "llama_accumulation": Case(
        model="transformers Llama, 2 layers",
        bounds=("compute", "memory"),
        causes=("small-batch",),
        fix="4 micro-batches of 16 -> one batch of 64",
        slow=lambda: loops.llama_run(layers=2, dim=1024, batch=16, seq=1024, accum=4),
        fixed=lambda: loops.llama_run(layers=2, dim=1024, batch=64, seq=1024),
    ),
}

LOOK_ALIKES: dict[str, Case] = {
    "vit_item_device_bound": Case(
        model="torchvision VisionTransformer, 4 layers",
        bounds=("compute", "memory"),
        no_gain_from=("device-sync",),
        fix="no loss.item() each step",
        slow=lambda: loops.vit_device(after=[loops.read_loss]),
        fixed=loops.vit_device,
        same_as="vit_nchw_patches.slow",
    ),
    "vit_nchw_patches": Case(
        model="torchvision VisionTransformer, 4 layers",
        bounds=("compute", "memory"),
        no_gain_from=("nchw-layout",),
        fix="channels_last (one convolution, the patch embedding)",
        slow=lambda: loops.conv_net("VisionTransformer", batch=256, channels_last=False, amp=True, **loops.VIT),
        fixed=lambda: loops.conv_net("VisionTransformer", batch=256, channels_last=True, amp=True, **loops.VIT),
        record_fixed=False,
    ),
    "gan_item_host_bound": Case(
        model="convolutional GAN, two optimizers",
        bounds=("host",),
        causes=("launch-overhead",),
        no_gain_from=("device-sync",),
        fix="no .item() of the two losses each step",
        slow=lambda: loops.gan(read=True),
        fixed=loops.gan,
        also={"whole step as a CUDA graph": lambda: loops.gan(graph=True)},
        cause="whole step as a CUDA graph",
        held_out=True,
        same_as="gan_looped_adam.fixed",
    ),
    "dlrm_fp32": Case(
        model="DLRM-like recommender, 8 tables of 2M rows",
        bounds=("memory",),
        no_gain_from=("fp32-matmul",),
        fix='set_float32_matmul_precision("high")',
        slow=loops.recommender,
        fixed=lambda: loops.recommender(matmul="high"),
        held_out=True,
    ),
    "mlp_looped_adam_big": Case(
        model="MLP, ten 4096 x 4096 matrices",
        bounds=("compute",),
        no_gain_from=("looped-optimizer",),
        fix="AdamW foreach=False -> fused=True",
        slow=lambda: loops.wide_mlp(foreach=False, fused=False),
        fixed=loops.wide_mlp,
        also={"foreach=True": lambda: loops.wide_mlp(foreach=True)},
        plan=LONG,
    ),
    "gpt2_tiny_pageable": Case(
        model="transformers GPT-2, 4 layers",
        bounds=("compute", "memory"),
        no_gain_from=("pageable-copy",),
        fix="pin memory + non_blocking (token ids)",
        slow=lambda: loops.gpt2_run(batch=32, pin=False),
        fixed=lambda: loops.gpt2_run(batch=32, pin=True),
    ),
    "lstm_compile": Case(
        model="cuDNN LSTM language model, 2 layers",
        bounds=("compute", "memory"),
        no_gain_from=("launch-overhead", "unfused-pointwise"),
        fix="torch.compile",
        slow=lambda: loops.lstm(cells=False, layers=2, dim=1024, seq=256),
        fixed=lambda: loops.lstm(cells=False, layers=2, dim=1024, seq=256, compiled=True),
        plan=COMPILE,
        record_fixed=False,
    ),
    "vit_average_kernels": Case(
        model="torchvision VisionTransformer, 6 layers",
        bounds=("compute", "memory"),
        no_gain_from=("launch-overhead", "looped-optimizer"),
        fix="moving average and norms as multi-tensor kernels",
        slow=lambda: loops.vit_average(multi_tensor=False),
        fixed=lambda: loops.vit_average(multi_tensor=True),
        held_out=True,
    ),
    "bert_short_eager_attention": Case(
        model="transformers BERT, 3 layers, sequence 16",
        bounds=("compute",),
        no_gain_from=("unfused-attention",),
        fix='attn_implementation "eager" -> "sdpa"',
        slow=lambda: loops.bert_run(layers=3, dim=2048, batch=2048, seq=16, attn="eager"),
        fixed=lambda: loops.bert_run(layers=3, dim=2048, batch=2048, seq=16),
    ),
    "unet_recompute_starved": Case(
        model="diffusion U-Net",
        bounds=("data",),
        causes=("starved-loader",),
        no_gain_from=("needless-recompute",),
        fix="gradient checkpointing off",
        slow=lambda: loops.unet(workers=3, read_ms=6, recompute=True),
        fixed=lambda: loops.unet(workers=3, read_ms=6),
        also={"num_workers 3 -> 24": lambda: loops.unet(workers=24, read_ms=6, recompute=True)},
        cause="num_workers 3 -> 24",
        plan=LOADER,
    ),
    "llama_small_save": Case(
        model="transformers Llama, 2 layers",
        bounds=("compute", "memory"),
        no_gain_from=("checkpoint-stall",),
        fix="no torch.save of the final norm (4 kB) each step",
        slow=lambda: loops.llama_run(layers=2, dim=1024, batch=64, seq=1024, save_norm=True),
        fixed=lambda: loops.llama_run(layers=2, dim=1024, batch=64, seq=1024),
        same_as="llama_accumulation.fixed",
    ),
}

CASES: dict[str, Case] = FAULTS | LOOK_ALIKES
