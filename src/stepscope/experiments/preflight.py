"""Settings that cannot take effect where the job would run: what is known before anything is run.

Silence is no proof: where the machine does not tell, or the command starts its job elsewhere
(`srun`, `ssh`, a container), nothing is known here, and the job itself says what did not take hold.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stepscope.core.experiments.trials import Value
from stepscope.core.run import LoaderKnobs
from stepscope.protocol.settings import OF_LOADERS

NEEDS_GPU: Mapping[str, str] = {
    "tf32": "TF32 is a mode of a GPU's matrix units",
    "cudnn_benchmark": "cuDNN runs on GPUs alone",
    "pin_memory": "pinned memory speeds up copies to a GPU",
    "allocator": "it sets up the allocator of a GPU's memory",
    "empty_cache": "it is about the allocator of a GPU's memory",
    "launch_blocking": "it is about kernels on a GPU",
}
"""Settings that do nothing without a GPU, and why."""
ON_CPU = ("num_workers", "num_threads", "compile_mode", "channels_last", "fused_optimizer")
"""Settings that often matter without one."""
LOCAL = re.compile(r"(python|pypy)[\d.]*(\.exe)?|torchrun(\.exe)?")
"""Commands whose job runs on this machine."""
DEVICE_FILES = (
    "dev/nvidiactl", "dev/nvidia0", "dev/kfd", "dev/dxg", "proc/driver/nvidia", "dev/nvhost-ctrl",
    "dev/nvgpu", "dev/dri/renderD128", "dev/accel",
)  # fmt: skip
"""One of these is there where an accelerator's driver is: NVIDIA's, AMD's, Windows' through its
subsystem for Linux, Tegra's, or Intel's and others', which may be a mere screen's: then the job
itself says what did not take hold."""
HIDING = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that leave none to be seen."""


def why_no_gpu(
    command: Sequence[str], environment: Mapping[str, str], root: Path = Path("/")
) -> str | None:
    """Why the job will surely find no GPU; None where it may."""
    if not command or not LOCAL.fullmatch(Path(command[0]).name):
        return None
    if {**os.environ, **environment}.get("CUDA_VISIBLE_DEVICES", "all") in HIDING:
        return "CUDA_VISIBLE_DEVICES hides every GPU from it"
    if sys.platform == "darwin" or (
        sys.platform == "linux" and not any((root / name).exists() for name in DEVICE_FILES)
    ):
        return "this machine has no CUDA device"
    return None


def unable(
    names: Iterable[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    root: Path = Path("/"),
) -> dict[str, str]:
    """Settings of these that cannot take effect, and why."""
    needing = [name for name in names if name in NEEDS_GPU]
    why = why_no_gpu(command, environment, root) if needing else None
    return {} if why is None else {name: f"{NEEDS_GPU[name]}, and {why}" for name in needing}


def unable_with(loader: LoaderKnobs | None, knobs: Mapping[str, Value]) -> dict[str, str]:
    """Settings of these that the recorded job's own loader cannot take, and why."""
    if loader is None:
        return {}
    why, num = None, knobs.get("num_workers")
    is_whole = loader.is_iterable and not loader.splits_itself and (loader.num_workers or 0) <= 1
    if loader.is_bare:
        why = "the job iterates its dataset by itself, with no DataLoader that could be set"
    elif is_whole and isinstance(num, int) and num > 1:
        why = (
            "its dataset is iterable and may give every sample once per worker: nothing in it asks "
            "for get_worker_info()"
        )
    return {} if why is None else {name: why for name in knobs if name in OF_LOADERS}


def unable_words(reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Each as a refusal, with what to do instead."""
    instead = (
        f"Try it on a machine with a GPU; without one, {', '.join(ON_CPU[:-1])} and {ON_CPU[-1]} "
        "are what may help"
    )
    return tuple(
        f"{name} cannot take effect: {why}. Nothing was run. {instead}"
        for name, why in reasons.items()
    )
