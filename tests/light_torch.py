"""`import torch` in less than half the time, for a job that neither compiles nor is distributed: a
torch without its compiler.

The first optimizer imports torch._dynamo, which takes as long as torch itself, only to keep it away
from what it does; and a quarter of `import torch` registers what tensors without data need.
"""

import gc
import sys
import types
from typing import Any

sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")
gc.disable()
import torch  # noqa: E402
import torch._prims.rng_prims  # noqa: E402 - torch.Generator is there after it

gc.enable()
dynamo: Any = types.ModuleType("torch._dynamo")
dynamo.disable = lambda function, *_, **__: function
dynamo.graph_break = lambda: None
sys.modules["torch._dynamo"] = torch._dynamo = dynamo
vars(torch)["_lazy_modules"].discard("_inductor")
