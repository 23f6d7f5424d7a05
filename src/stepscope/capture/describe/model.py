"""The models of the job.

The modules that no other module holds, and their parameters' numbers, kinds and shapes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.describe.peek import attempt, attributes, class_of, plain

WRAPPED_NAMES = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names under which the compiler, DDP, FSDP and activation checkpointing hold the model that they
wrap."""
MAX_MODELS = 4
MAX_SHAPES = 64
MAX_CLASSES = 24
MAX_WALK_NS = 300_000_000
"""Nanoseconds of the training thread's own time, which it spends on the walk. A model of a million
modules is described in part, and the notes say so. Not of the clock on the wall: where other
processes hold it up, any model would be."""


def model_notes(
    torch: Any, modules: list[Any], clock: Callable[[], int] = clocks.thread_time_ns
) -> dict[str, Any]:
    """The largest models, largest first.

    Tensors are asked for their metadata alone: nothing runs on a device.
    """
    until = clock() + MAX_WALK_NS
    # A tensor of somebody's own class would otherwise run code of that class for each question.
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        models = [_Model(root, clock, until).notes() for root in roots(modules)]
    models = [notes for notes in models if notes["num_params"]]
    models.sort(key=lambda notes: -int(notes["num_params"]))
    return {
        "models": models[:MAX_MODELS],
        "num_models": len(models),
        "memory": attempt(memory_notes, torch),
    }


def memory_notes(torch: Any) -> dict[str, int] | None:
    """What the allocator has had at most, for the device that the job's thread uses."""
    cuda = torch.cuda
    if not cuda.is_initialized():
        return None
    return {
        "max_allocated_bytes": cuda.max_memory_allocated(),
        "max_reserved_bytes": cuda.max_memory_reserved(),
        "allocated_bytes": cuda.memory_allocated(),
        "reserved_bytes": cuda.memory_reserved(),
    }


def roots(modules: list[Any]) -> list[Any]:
    """Modules that no other one holds."""
    child_ids = {id(child) for module in modules for child in _children(module)}
    return [module for module in modules if id(module) not in child_ids]


def _children(module: Any) -> Iterator[Any]:
    children = attributes(module).get("_modules")
    if isinstance(children, dict):
        # A list, for another thread may change the dict meanwhile.
        yield from (child for child in list(children.values()) if child is not None)


class _Model:
    """One walk over a root module's tree.

    Each module and parameter counts once, however many hold it.
    """

    def __init__(self, root: Any, clock: Callable[[], int], until: int) -> None:
        self.root = root
        self.is_whole = True
        self.classes: Counter[str] = Counter()
        self.dtypes: Counter[Any] = Counter()
        self.shapes: Counter[tuple[int, ...]] = Counter()
        self.num_tensors = self.num_params = self.num_trainable = self.num_bytes = (
            self.local_bytes
        ) = self.num_unread = 0
        visited: set[int] = set()
        params: set[int] = set()
        stack = [root]
        while stack:
            module = stack.pop()
            if id(module) in visited:
                continue
            visited.add(id(module))
            if clock() > until:
                self.is_whole = False
                break
            self.classes[type(module).__name__] += 1
            own_params = attributes(module).get("_parameters")
            for param in list(own_params.values()) if isinstance(own_params, dict) else ():
                if param is not None and id(param) not in params:
                    params.add(id(param))
                    self._add(param)
            stack.extend(_children(module))

    def _add(self, param: Any) -> None:
        metadata = attempt(_metadata, param)
        if metadata is None:
            # A lazy parameter has no shape before the first forward.
            self.num_unread += 1
            return
        shape, dtype, item_bytes, needs_grad, local = metadata
        size = math.prod(shape)
        self.num_tensors += 1
        self.num_params += size
        self.num_trainable += size if needs_grad else 0
        self.num_bytes += size * item_bytes
        self.local_bytes += math.prod(local) * item_bytes
        self.dtypes[dtype] += size
        self.shapes[shape] += 1

    def notes(self) -> dict[str, Any]:
        largest = sorted(self.shapes, key=lambda shape: -math.prod(shape) * self.shapes[shape])[
            :MAX_SHAPES
        ]
        return {
            "class": class_of(self.root),
            "wraps": _wrapped(self.root),
            "is_whole": self.is_whole,
            "training": plain(attributes(self.root).get("training")),
            "num_modules": sum(self.classes.values()),
            "num_tensors": self.num_tensors,
            "num_params": self.num_params,
            "num_trainable": self.num_trainable,
            "num_unread": self.num_unread,
            "param_bytes": self.num_bytes,
            "local_param_bytes": self.local_bytes,
            "num_params_by_dtype": {
                plain(dtype) or "unknown": num for dtype, num in self.dtypes.items()
            },
            "num_shapes": len(self.shapes),
            "shapes": [{"shape": list(shape), "num": self.shapes[shape]} for shape in largest],
            "module_classes": dict(self.classes.most_common(MAX_CLASSES)),
        }


def _metadata(param: Any) -> tuple[tuple[int, ...], Any, int, bool, tuple[int, ...]]:
    """Shape, dtype, bytes per item, whether it learns,
    and the shape of the shard that lies here."""
    dtype = param.dtype
    shape = tuple(param.shape)
    local = attributes(param).get("_local_tensor")
    local_shape = shape if local is None else tuple(local.shape)
    # Releases before 2.1 give a dtype's size only through a tensor.
    item_bytes = getattr(dtype, "itemsize", None) or param.element_size()
    return shape, dtype, item_bytes, param.requires_grad, local_shape


def _wrapped(root: Any) -> str | None:
    """The class of the model inside its wrappers, each of which holds exactly one module."""
    inner = root
    for _ in range(8):
        children = attributes(inner).get("_modules") or {}
        name = next((name for name in WRAPPED_NAMES if name in children), None)
        if name is None or len(children) != 1:
            break
        inner = children[name]
    return None if inner is root else class_of(inner)
