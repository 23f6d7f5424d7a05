"""Python frames by their names: whose code a frame is, and how its line is written.

The recorder names a frame `path/file.py(123): function`. It cuts the folders of `sys.path` off, so
that an installed package and the standard library stand there as `torch/nn/modules/linear.py` and
`contextlib.py`. The line is the one the function begins at, or, for a frame that was open when the
recording began, the one it was at.
"""

from __future__ import annotations

import re
import sys
from enum import IntEnum

FRAME = re.compile(
    r"^(?P<path>[^<].*\.pyw?|<ipython-input[^>]*>)\((?P<line>\d+)\): (?P<function>.+)$"
)
RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
"""What goes on after torch.compile broke off, named for the line it broke off at."""
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
STANDARD = re.compile(r"(^|/)lib/python3[^/]*/(?!site-packages|dist-packages)")
TORCH_TREE = re.compile(
    r"/torch/(_\w+|amp|autograd|cuda|distributed|fx|jit|nn|optim|profiler|utils)[/.]"
)
"""A torch that was built from source and lies elsewhere."""

PLUMBING = frozenset(
    {"torch", "functorch", "triton", "numpy", "tqdm", "stepscope", "_pytest", "pluggy", "debugpy"}
)
"""Packages whose lines say nothing about the run."""
LIBRARIES = frozenset({
    "PIL", "accelerate", "apex", "bitsandbytes", "composer", "cv2", "datasets", "deepspeed",
    "diffusers", "einops", "flash_attn", "flashinfer", "fsspec", "huggingface_hub", "ignite",
    "joblib", "lightning", "lightning_fabric", "liger_kernel", "mmcv", "mmengine", "monai",
    "pandas", "peft", "pytorch_lightning", "ray", "scipy", "sklearn", "tensorboard", "timm",
    "tokenizers", "torch_geometric", "torchaudio", "torchdata", "torchmetrics", "torchvision",
    "transformer_engine", "transformers", "trl", "vllm", "wandb", "webdataset", "xformers",
})  # fmt: skip
"""Installed packages that are known by name, once the recorder has cut their folder off."""
MAX_CHARACTERS = 60


class Owner(IntEnum):
    """Whose code a frame is."""

    NOBODY = 0  # no Python line: a built-in, a module's mark, no frame at all
    PLUMBING = 1  # torch, the standard library
    LIBRARY = 2
    USER = 3


def owner_of(name: str) -> Owner:
    """Whose frame this is, by its path."""
    frame = FRAME.match(name)
    if frame is None:
        return Owner.NOBODY
    path = frame["path"].replace("\\", "/")
    inside = INSTALLED.sub("", path)
    top = inside.split("/", 1)[0].removesuffix(".py")
    if (
        top in PLUMBING
        or top in sys.stdlib_module_names
        or STANDARD.search(path)
        or TORCH_TREE.search(path)
    ):
        return Owner.PLUMBING
    return Owner.LIBRARY if inside != path or top in LIBRARIES else Owner.USER


def line_of(name: str) -> str:
    """The frame as a source location: `model.py:25 in forward`, with the folder it is in.

    Before  models/gpt/block.py(25): forward               After  gpt/block.py:25 in forward
            model.py(25): torch_dynamo_resume_in_forward_at_31    model.py:31 in forward
    """
    frame = FRAME.match(name)
    if frame is None:
        return _short(name)
    path, line, function = frame["path"].replace("\\", "/"), frame["line"], frame["function"]
    if resumed := RESUMED.match(function):
        line, function = resumed["line"], resumed["function"]
    return f"{_short('/'.join(path.split('/')[-2:]))}:{line} in {_short(function)}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"...{text[-MAX_CHARACTERS:]}"
