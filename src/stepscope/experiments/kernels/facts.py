"""What the bench's process knows of its software and its target.

Versions, and which ways make sense for it.
"""

from __future__ import annotations

import importlib
import platform
import shutil
import sys
from typing import TYPE_CHECKING, Any

from stepscope.core.calibrated import Machine
from stepscope.experiments.kernels.space import Settings, default_options

if TYPE_CHECKING:
    from stepscope.experiments.kernels.bench import KernelBench


def versions_of(torch: Any, machine: Machine, source: str | None) -> dict[str, str]:
    """Whatever may change which configuration wins.

    The source is a digest of the kernel's own file.
    """
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    triton: Any = sys.modules.get("triton")
    if triton is not None:
        versions["triton"] = str(getattr(triton, "__version__", "unknown"))
    if machine.runtime:
        versions["runtime"] = machine.runtime
    if machine.driver:
        versions["driver"] = machine.driver
    cudnn: Any = torch.backends.cudnn.version() if machine.kind == "cuda" else None
    if cudnn:
        versions["cudnn"] = str(cudnn)
    if source:
        versions["source"] = source
    return versions


def default_options_of(bench: KernelBench) -> tuple[Settings, ...]:
    torch, target = bench.device.torch, bench.target
    parts = list(target.call.modules()) if target.is_module else []
    convs = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d)
    return default_options(
        on_gpu=bench.device.kind == "cuda",
        has_compiler=_has_compiler(bench.device.kind),
        has_conv=any(isinstance(part, convs) for part in parts),
        has_products=any(isinstance(part, torch.nn.Linear) for part in parts),
    )


def _has_compiler(kind: str) -> bool:
    """Whether torch.compile can make code: Triton on a GPU, a C++ compiler on a CPU."""
    if kind == "cuda":
        try:
            importlib.import_module("triton")
        except ImportError:
            return False
        return True
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))
