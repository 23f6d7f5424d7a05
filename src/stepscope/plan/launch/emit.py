"""Which frameworks a layout can be written for, and what each restricts the search to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import Struct

from stepscope.plan.estimate import Choice
from stepscope.plan.framework import find_framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch import deepspeed, megatron, torch, torchtitan
from stepscope.plan.launch.files import Launch
from stepscope.plan.space import Space

PLAIN = ("none", "full")


class Target(Struct, frozen=True, kw_only=True):
    """A framework that a layout can be written for."""

    framework: str
    """Whose conventions the plan goes by."""
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
}
PYTORCH = ("torchrun", "fsdp2", "torchtitan")
"""Targets that run on PyTorch alone."""
COMPARED = (*PYTORCH, "deepspeed", "megatron")
"""One for each framework."""


def target_of(framework: str) -> str | None:
    """The target that a framework's layouts are written for."""
    return next((word for word in COMPARED if TARGETS[word].framework == framework), None)


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
