"""`import torch` in half the time, for a job that compiles nothing: a torch without its compiler.

The first optimizer and the first DistributedDataParallel import torch._dynamo, which takes as long
as torch itself, only to keep it away from what they do; and a third of `import torch` registers
what tensors without data and exported programs need. Graphs of programs, function transforms,
nested, quantized and masked tensors, random variables, data pipes, packages of programs and the
tensors' documentation are left out with them, and so are mocks; and torch finds no numpy, which a
job may still import for itself.
"""

import gc
import sys
import types
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

LEFT_OUT = {
    "torchgen", "unittest",
    *(
        f"torch.{name}"
        for name in (
            "_higher_order_ops", "_lobpcg", "_meta_registrations", "_native",
            "_size_docs", "_storage_docs", "_strobelight", "_subclasses", "_tensor_docs", "ao",
            "autograd.gradcheck", "cuda._memory_viz", "cuda.tunable",
            "distributed._meta_registrations", "distributions", "export", "func", "fx", "hub",
            "masked", "nested", "nn.intrinsic", "nn.qat", "nn.quantizable", "nn.quantized",
            "package.analyze", "package.package_exporter", "package.package_importer",
            "profiler._memory_profiler", "quantization", "signal", "testing",
            "utils.collect_env", "utils.data.datapipes",
        )
    ),
}  # fmt: skip
"""With the modules inside of them."""


class _Class(type):
    """Whatever is asked of it is a class of that name, which nothing is an instance of, and as a
    list it is empty."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Class(name, (), {})
        setattr(cls, name, made)
        return made

    def __iter__(cls) -> Iterator[object]:
        return iter(())


class _LeftOut(types.ModuleType):
    """Has what is asked of it, as its classes have."""

    def __getattr__(self, name: str) -> type:
        made: type = _Class.__getattr__(self, name)  # type: ignore[arg-type]
        return made


class _Finder:
    """Finds what is left out before those who would find it on the disk."""

    def __init__(self) -> None:
        self.numpy_is_there = False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == "numpy" and not self.numpy_is_there:
            raise ModuleNotFoundError(name)
        if name not in LEFT_OUT and name.rpartition(".")[0] not in LEFT_OUT:
            return None
        LEFT_OUT.add(name)
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> _LeftOut:
        return _LeftOut(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


finder = _Finder()
sys.meta_path.insert(0, finder)
gc.disable()
import torch
import torch._subclasses
from torch._opaque_base import OpaqueBaseMeta

gc.enable()
with warnings.catch_warnings():
    # The first tensor of a list asks for numpy, and what it then says it says once.
    warnings.simplefilter("ignore")
    torch.tensor([0.0])
finder.numpy_is_there = True
# No torch.Generator can be made without it; what does it otherwise is no longer imported.
torch._C._set_generator_metaclass(OpaqueBaseMeta)
dynamo: Any = types.ModuleType("torch._dynamo")
dynamo.disable = lambda function, *_, **__: function
dynamo.graph_break = lambda: None
dynamo.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
dynamo.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
sys.modules["torch._dynamo"] = torch._dynamo = dynamo
vars(torch)["_lazy_modules"].discard("_inductor")
# Python looks through all objects several times as it ends, and torch's are most of them.
gc.freeze()
