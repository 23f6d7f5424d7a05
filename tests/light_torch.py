"""`import torch` in half the time, for a job that compiles nothing: a torch without its compiler.

The first optimizer and the first DistributedDataParallel import torch._dynamo, which takes as long
as torch itself, only to keep it away from what they do; and a third of `import torch` registers
what tensors without data and exported programs need. Quantized, masked and random variables are
left out with them.
"""

import gc
import sys
import types
from typing import Any

LEFT_OUT = (
    "_meta_registrations", "export", "ao", "quantization", "nn.intrinsic", "nn.qat",
    "nn.quantizable", "nn.quantized", "masked", "distributions",
)  # fmt: skip
for _name in LEFT_OUT:
    sys.modules[f"torch.{_name}"] = types.ModuleType(f"torch.{_name}")
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
vars(torch)["_lazy_modules"].discard("_inductor")
