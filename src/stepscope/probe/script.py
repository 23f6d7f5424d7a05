"""A stand-alone file that times one operator of a recording, as it ran and changed."""

from __future__ import annotations

import ast

from stepscope.core.hardware import Dims, OperatorCall, ProbeCase
from stepscope.errors import UsageError
from stepscope.probe.probing import Judged

TYPES = {
    "fp64": "torch.float64", "fp32": "torch.float32", "fp16": "torch.float16",
    "bf16": "torch.bfloat16", "int64": "torch.int64", "int32": "torch.int32", "bool": "torch.bool",
}  # fmt: skip
HEAD = '''"""{op} as it ran in a recording, and changed. Needs torch alone."""
import torch
from torch.utils.benchmark import Timer

device = "cuda" if torch.cuda.is_available() else "cpu"


def tensor(dims, strides, dtype, precision):
    if precision in (torch.bfloat16, torch.float16) and dtype.is_floating_point:
        dtype = precision
    size = 1 + sum((n - 1) * step for n, step in zip(dims, strides)) if all(dims) else 0
    make = torch.randn if dtype.is_floating_point else torch.zeros
    return make(size, device=device).to(dtype).as_strided(dims, strides)


'''
TAIL = """

for name, precision, tf32 in {ways}:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    call = make(precision)
    call()
    timer = Timer("call()", globals={{"call": call}})
    print(f"{{name:6}} {{timer.blocked_autorange(min_run_time=1).median * 1e6:10.1f}} us")
"""
WAYS = {
    "asis": '("as is", None, True)',
    "fp32": '("fp32", None, False)',
    "tf32": '("tf32", None, True)',
    "bf16": '("bf16", torch.bfloat16, True)',
    "fp16": '("fp16", torch.float16, True)',
}


def script_of(name: str, judged: Judged) -> str:
    """The heaviest operator of that name that findings would change."""
    wanted = name.removeprefix("aten::")
    # What a recording calls an operator may be anything.
    cases = [case for case in judged.asked if _name(case) == wanted and wanted.isidentifier()]
    if not cases:
        names = ", ".join(dict.fromkeys(_name(case) for case in judged.asked)) or "none"
        raise UsageError(f"no finding is about {wanted} in this recording; there are: {names}")
    call = cases[0].call
    ways = [case.way.split("+")[0] for case in cases if case.call == call]
    shown = ", ".join(WAYS[way] for way in WAYS if way in ways)
    return HEAD.format(op=wanted) + _make(call) + TAIL.format(ways=f"[{shown}]")


def _name(case: ProbeCase) -> str:
    return case.call.op.removeprefix("aten::")


def _make(call: OperatorCall) -> str:
    op = call.op.removeprefix("aten::")
    if op == "attention":
        return _attention(call)
    if not call.op.startswith("aten::"):
        raise UsageError(
            f"{op} is timed through its class or module, which needs no script: see "
            "`stepscope probe` without --script"
        )
    lines = ["def make(precision):"]
    arguments = []
    for index, dims in enumerate(call.dims):
        dtype = call.types[index]
        if dtype in TYPES and dims:
            strides = call.strides[index] or _contiguous(dims)
            lines.append(f"    t{index} = tensor({dims}, {strides}, {TYPES[dtype]}, precision)")
            arguments.append(f"t{index}")
        else:
            arguments.append(_literal(call.concrete[index]))
    lines.append(f"    return lambda: torch.ops.aten.{op}({', '.join(arguments)})")
    return "\n".join(lines) + "\n"


def _attention(call: OperatorCall) -> str:
    (b, h, n, d), (_, _, m, _), (_, _, _, v) = call.dims[:3]
    causal = call.concrete[4] == "causal"
    return (
        "def make(precision):\n"
        f"    q, k, v = (torch.randn({b}, {h}, length, size, device=device, dtype=precision or "
        "torch.float32)\n"
        f"               for length, size in (({n}, {d}), ({m}, {d}), ({m}, {v})))\n"
        "    run = torch.nn.functional.scaled_dot_product_attention\n"
        f"    return lambda: run(q, k, v, is_causal={causal})\n"
    )


def _literal(text: str) -> str:
    """What was recorded of an argument that is no tensor; None where that is no plain value."""
    try:
        return repr(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return "None"


def _contiguous(dims: Dims) -> tuple[int, ...]:
    steps, step = [], 1
    for size in reversed(dims):
        steps.append(step)
        step *= size if isinstance(size, int) else 1
    return tuple(reversed(steps))
