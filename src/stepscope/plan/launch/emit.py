"""Which frameworks a layout can be written for, and what each restricts the search to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import Struct

from stepscope.errors import UsageError
from stepscope.plan.choice import Choice
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.deepspeed import deepspeed
from stepscope.plan.launch.files import Launch
from stepscope.plan.launch.megatron import megatron
from stepscope.plan.launch.torch import accelerate, fsdp2, torchrun
from stepscope.plan.launch.torchtitan import torchtitan
from stepscope.plan.space import Space

SINGLE = (1,)
PLAIN = ("none", "full")


class Target(Struct, frozen=True, kw_only=True):
    """A framework that a layout can be written for."""

    framework: str
    """Whose conventions the plan goes by."""
    write: Callable[[TrainingJob, Choice], Launch]
    space: Mapping[str, Any]
    """What it can express: fields of Space where nothing is pinned."""


_DATA: dict[str, Any] = {"tp": SINGLE, "pp": SINGLE, "cp": SINGLE, "ep": SINGLE}
TARGETS = {
    "torchrun": Target(
        framework="ddp",
        write=torchrun,
        space={**_DATA, "zero_stage": (0,), "recompute": PLAIN},
    ),
    "fsdp2": Target(
        framework="fsdp", write=fsdp2, space={**_DATA, "zero_stage": (3,), "recompute": PLAIN}
    ),
    "deepspeed": Target(
        framework="megatron-deepspeed", write=deepspeed, space={**_DATA, "recompute": PLAIN}
    ),
    "megatron": Target(
        framework="megatron-core",
        write=megatron,
        space={"schedule": ("1f1b",), "zero_stage": (0, 1), "shard": (0,)},
    ),
    "torchtitan": Target(
        framework="torchtitan",
        write=torchtitan,
        space={"schedule": ("1f1b", "gpipe", "zbv"), "has_partial_recompute": False},
    ),
    "accelerate": Target(framework="fsdp", write=accelerate, space={**_DATA, "recompute": PLAIN}),
}


def restricted(space: Space, target: str, num_devices: int) -> Space:
    """The space with what the target can express where nothing was pinned."""
    if target == "fsdp2" and num_devices == 1:
        raise UsageError("one device has no other to share its states with: --emit torchrun")
    plain = Space()
    free = {
        name: values
        for name, values in TARGETS[target].space.items()
        if getattr(space, name) == getattr(plain, name)
    }
    return replace(space, **free)


def launch_of(target: str, job: TrainingJob, choice: Choice) -> Launch:
    """The files of one layout; UsageError where it cannot be expressed there."""
    return TARGETS[target].write(job, choice)
