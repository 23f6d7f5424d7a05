"""Modules that wrap a model to spread, compile or recompute it.

DDP, FSDP, DataParallel, torch.compile, checkpointing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from stepscope.capture.describe.peek import (
    ask,
    attempt,
    attributes,
    chosen,
    class_of,
    counted,
    plain,
)

CHECKPOINT_FLAGS = (
    "gradient_checkpointing",
    "grad_checkpointing",
    "activation_checkpointing",
    "use_checkpoint",
    "use_checkpointing",
)
"""What models call their own switch: transformers, timm, torchtitan, Swin and CLIP descendants."""
CHECKPOINT_WRAPPERS = (
    "CheckpointWrapper",
    "CheckpointModule",
    "ActivationCheckpointWrapper",
    "CheckpointFunctionModule",
)


def wrapper_notes(torch: Any, modules: list[Any]) -> dict[str, Any]:
    """The knobs of all wrappers among these modules, equal ones counted."""
    parallel = torch.nn.parallel
    return {
        "ddp": _all(modules, getattr(parallel, "DistributedDataParallel", None), ddp_notes),
        "fsdp": _all(
            modules, _loaded("torch.distributed.fsdp", "FullyShardedDataParallel"), fsdp_notes
        ),
        "fsdp2": _all(modules, _loaded("torch.distributed.fsdp", "FSDPModule"), fsdp2_notes),
        "data_parallel": _all(
            modules, getattr(parallel, "DataParallel", None), data_parallel_notes
        ),
        "compiled": compiled_notes(modules),
        "checkpointing": checkpoint_notes(modules),
    }


def ddp_notes(module: Any) -> dict[str, Any]:
    """DistributedDataParallel. A `bucket_cap_mb` that nobody gave is torch's own default."""
    attrs = attributes(module)
    cap, hook = attrs.get("bucket_bytes_cap"), attrs.get("_comm_hooks")
    return {
        "class": class_of(module),
        "bucket_cap_mb": cap / (1 << 20) if type(cap) is int else None,
        **chosen(module, "find_unused_parameters", "static_graph", "gradient_as_bucket_view"),
        # Renamed in 2.13.
        "broadcast_buffers": plain(
            attrs.get("forward_sync_buffers", attrs.get("broadcast_buffers"))
        ),
        **chosen(module, "require_backward_grad_sync", "bucket_bytes_cap_default"),
        "comm_hook": [getattr(pair[0], "__name__", None) for pair in hook]
        if type(hook) is list
        else None,
        "process_group_size": ask(module, "process_group.size"),
    }


def fsdp_notes(module: Any) -> dict[str, Any]:
    """FullyShardedDataParallel, the older one."""
    attrs = attributes(module)
    return {
        "class": class_of(module),
        **chosen(
            module,
            "sharding_strategy",
            "forward_prefetch",
            "backward_prefetch",
            "limit_all_gathers",
            "_use_orig_params",
        ),
        "cpu_offload": plain(attributes(attrs.get("cpu_offload")).get("offload_params")),
        **_policy(attrs.get("mixed_precision"), ("param_dtype", "reduce_dtype", "buffer_dtype")),
    }


def fsdp2_notes(module: Any) -> dict[str, Any]:
    """A module under fully_shard.

    It has no public word for what it was given, so its state is looked into.
    """
    state = ask(module, "_get_fsdp_state")
    attrs = attributes(state)
    groups = attrs.get("_fsdp_param_groups", attrs.get("_fsdp_param_group"))
    group = attributes(groups[0] if type(groups) is list and groups else groups)
    prefetch = {name: attrs.get(f"_states_to_{name}_prefetch") for name in ("forward", "backward")}
    return {
        # Every class under fully_shard gets a class of its own, with this before its name.
        "class": type(module).__name__.removeprefix("FSDP"),
        "is_root": plain(attrs.get("_is_root")),
        "reshard_after_forward": None
        if not group
        else group.get("post_forward_mesh_info") is not None,
        "reshard_after_backward": plain(group.get("reshard_after_backward")),
        **_policy(
            group.get("mp_policy", attrs.get("_mp_policy")),
            ("param_dtype", "reduce_dtype", "output_dtype"),
        ),
        "offload": class_of(group.get("offload_policy")),
        **{
            f"num_{name}_prefetch": len(states) if type(states) is list else None
            for name, states in prefetch.items()
        },
    }


def data_parallel_notes(module: Any) -> dict[str, Any]:
    """DataParallel: one process for all of these devices."""
    devices = attributes(module).get("device_ids")
    return {
        "class": class_of(module),
        "num_devices": len(devices) if type(devices) is list else None,
    }


def compiled_notes(modules: list[Any]) -> list[dict[str, Any]]:
    """Modules under torch.compile, and those that compiled themselves in place.

    Compiled functions are not seen here.
    """
    wrapper = _loaded("torch._dynamo.eval_frame", "OptimizedModule")
    rows = [
        attempt(_compiled, module) or {}
        for module in modules
        if wrapper is not None and issubclass(type(module), wrapper)
    ]
    in_place = [
        module for module in modules if attributes(module).get("_compiled_call_impl") is not None
    ]
    rows += [{"class": class_of(module), "in_place": True} for module in in_place]
    return counted(rows)


def _compiled(module: Any) -> dict[str, Any]:
    attrs = attributes(module)
    context = attributes(attrs.get("dynamo_ctx"))
    backend = context.get("callback")
    # The backend is at the bottom of what the compiler has wrapped around it.
    for _ in range(8):
        inner = attributes(backend).get(
            "_torchdynamo_orig_backend", attributes(backend).get("_torchdynamo_orig_callable")
        )
        if inner is None:
            break
        backend = inner
    config = attributes(backend).get("config")
    config = config if type(config) is dict else {}
    name = (
        getattr(backend, "compiler_name", None)
        or getattr(backend, "__name__", None)
        or class_of(backend)
    )
    return {
        "class": class_of(attributes(module).get("_modules", {}).get("_orig_mod")),
        "in_place": False,
        "backend": plain(name),
        "mode": _mode(config) if name == "inductor" else None,
        "fullgraph": plain(context.get("fullgraph")),
        "dynamic": plain(context.get("_dynamic")),
    }


def _mode(config: dict[str, Any]) -> str:
    """The mode that sets these options; it is not kept itself."""
    is_tuned = bool(config.get("max_autotune"))
    has_graphs = bool(config.get("triton.cudagraphs"))
    if is_tuned:
        return "max-autotune" if has_graphs else "max-autotune-no-cudagraphs"
    return "reduce-overhead" if has_graphs else "default"


def checkpoint_notes(modules: list[Any]) -> dict[str, int]:
    """How many modules recompute their activations,
    by the flag they set or the wrapper they sit in."""
    notes: dict[str, int] = {}
    for module in modules:
        name = type(module).__name__
        attrs = attributes(module)
        for reason in (
            *(flag for flag in CHECKPOINT_FLAGS if attrs.get(flag) is True),
            *({name} & set(CHECKPOINT_WRAPPERS)),
        ):
            notes[reason] = notes.get(reason, 0) + 1
    return notes


def _all(modules: Iterable[Any], kind: Any, notes: Any) -> list[dict[str, Any]]:
    if not isinstance(kind, type):
        return []
    return counted(
        attempt(notes, module) or {} for module in modules if issubclass(type(module), kind)
    )


def _loaded(module: str, name: str) -> Any:
    """A name of a module where the job has imported it."""
    return getattr(sys.modules.get(module), name, None)


def _policy(policy: Any, names: tuple[str, ...]) -> dict[str, Any]:
    attrs = attributes(policy)
    return {name: plain(attrs.get(name)) for name in names}
