"""`import torch` in half the time, for a job that compiles nothing: a torch without its compiler.

The first optimizer and the first DistributedDataParallel import torch._dynamo, which takes as long
as torch itself, only to keep it away from what they do; and a third of `import torch` registers
what tensors without data and exported programs need. Function transforms, nested, quantized and
masked tensors, random variables and the tensors' documentation are left out with them.
"""

import gc
import sys
import types
from typing import Any

LEFT_OUT = (
    "_higher_order_ops", "_higher_order_ops.invoke_subgraph", "_lobpcg", "_meta_registrations",
    "_native", "_size_docs", "_storage_docs", "_tensor_docs", "ao", "distributions",
    "distributed._meta_registrations", "export", "func", "fx.experimental.sym_node", "hub",
    "masked", "nested", "nested._internal", "nested._internal.nested_tensor", "nn.intrinsic",
    "nn.qat", "nn.quantizable", "nn.quantized", "quantization", "signal",
)  # fmt: skip


class _LeftOut(types.ModuleType):
    """Whatever is asked of it is a class of that name, which nothing is an instance of."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


for _name in LEFT_OUT:
    sys.modules[f"torch.{_name}"] = _LeftOut(f"torch.{_name}")
gc.disable()
import torch  # noqa: E402
from torch._opaque_base import OpaqueBaseMeta  # noqa: E402

gc.enable()
# No torch.Generator can be made without it; what does it otherwise is no longer imported.
torch._C._set_generator_metaclass(OpaqueBaseMeta)
dynamo: Any = types.ModuleType("torch._dynamo")
dynamo.disable = lambda function, *_, **__: function
dynamo.graph_break = lambda: None
dynamo.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
dynamo.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
sys.modules["torch._dynamo"] = torch._dynamo = dynamo
# torch.utils.checkpoint asks for it as it is imported.
functional = types.SimpleNamespace(FunctionalTensor=types.SimpleNamespace(metadata_fns=()))
vars(torch)["_subclasses"] = types.SimpleNamespace(functional_tensor=functional)
vars(torch)["_lazy_modules"].discard("_inductor")
# Python looks through all objects several times as it ends, and torch's are most of them.
gc.freeze()
