"""Which frameworks a layout can be written for, and what each restricts the search to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import Struct

from stepscope.plan.estimate import Choice
from stepscope.plan.framework import find_framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch import deepspeed, megatron, torch, torchtitan, transformers
from stepscope.plan.launch.files import Launch
from stepscope.plan.space import Space

PLAIN = ("none", "full")


class Target(Struct, frozen=True, kw_only=True):
    """A framework that a layout can be written for."""

    framework: str
    """Framework whose conventions the plan goes by."""
    write: Callable[[TrainingJob, Choice], Launch]
    lacks: Callable[[TrainingJob], list[str]]
    """What of a job cannot be written there, whatever the layout."""
    space: Mapping[str, Any]
    """What it can express: fields of Space where nothing is pinned."""
    adoption: str
    """What it takes to train a model of one's own with it."""


_DATA: dict[str, Any] = {"tp": (1,), "pp": (1,), "cp": (1,), "ep": (1,)}
TARGETS = {
    "torchrun": Target(
        framework="ddp",
        write=torch.torchrun,
        lacks=torch.lacking,
        space={**_DATA, "zero_stage": (0,), "recompute": PLAIN},
        adoption="the model in DistributedDataParallel, started by torchrun",
    ),
    "fsdp2": Target(
        framework="fsdp",
        write=torch.fsdp2,
        lacks=torch.lacking,
        space={**_DATA, "recompute": PLAIN},
        adoption="fully_shard on every layer, and checkpoints in shards",
    ),
    "deepspeed": Target(
        framework="deepspeed",
        write=deepspeed.deepspeed,
        lacks=deepspeed.lacking,
        space={**_DATA, "recompute": PLAIN},
        adoption="its engine around model and optimizer, a JSON file, its own checkpoints",
    ),
    "megatron": Target(
        framework="megatron-core",
        write=megatron.megatron,
        lacks=megatron.lacking,
        space={"schedule": ("1f1b",), "shard": (0,)},
        adoption="its trainer, data format and layers: checkpoints are converted",
    ),
    "torchtitan": Target(
        framework="torchtitan",
        write=torchtitan.torchtitan,
        lacks=torchtitan.lacking,
        space={"schedule": ("1f1b", "gpipe", "zbv"), "has_partial_recompute": False},
        adoption="its trainer and models, or a file that cuts yours",
    ),
    "accelerate": Target(
        framework="fsdp",
        write=torch.accelerate,
        lacks=torch.lacking,
        space={**_DATA, "recompute": PLAIN},
        adoption="prepare around model, optimizer and data, and a YAML file",
    ),
    "transformers": Target(
        framework="fsdp",
        write=transformers.transformers,
        lacks=transformers.lacking,
        space={**_DATA, "recompute": PLAIN, "has_partial_recompute": False, "shard": (0,)},
        adoption="its Trainer around a model of its own, and flags",
    ),
}
COMPARED = ("torchrun", "fsdp2", "torchtitan", "deepspeed", "megatron")
"""One for each framework."""


ANY_MODEL = "transformers"
"""Target that writes what `torchrun` and `fsdp2` have no model for."""
PYTORCH = (*COMPARED[:3], ANY_MODEL)
"""Targets that run on PyTorch's own means."""


def target_of(framework: str, job: TrainingJob) -> str | None:
    """The target that a framework's layouts are written for."""
    target = next((word for word in COMPARED if TARGETS[word].framework == framework), None)
    return None if target is None else able(target, job)


def able(target: str, job: TrainingJob) -> str:
    """The target, or the one in its place that has the model where it has not."""
    if target not in ("torchrun", "fsdp2") or not TARGETS[target].lacks(job):
        return target
    return target if TARGETS[ANY_MODEL].lacks(job) else ANY_MODEL


def offloads_of(target: str) -> tuple[str, ...]:
    """What the target's framework keeps on the host where it is asked to."""
    framework = find_framework(TARGETS[target].framework)
    assert framework is not None
    return framework.offloads


def restricted(space: Space, target: str) -> Space:
    """The space with what the target can express where nothing was pinned."""
    plain = Space()
    if len(space.offload) > 1:
        has = ("none", *offloads_of(target))
        space = replace(space, offload=tuple(kind for kind in space.offload if kind in has))
    free = {
        name: values
        for name, values in TARGETS[target].space.items()
        if getattr(space, name) == getattr(plain, name)
    }
    return replace(space, **free)


def launch_of(target: str, job: TrainingJob, choice: Choice) -> Launch:
    """The files of one layout; UsageError where it cannot be expressed there."""
    return TARGETS[target].write(job, choice)
