"""Calls of operators, made of a case: what is timed.

An operator is called by its own name in `torch.ops.aten`, with the arguments that were recorded.
A few are called in another way: a convolution and a norm by the operator that chooses their kernel,
attention by the function that chooses its back end, an optimizer by its class.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.probe.job.tensors import Maker, UnbuildableError, of_precision

Call = Callable[[], Any]
BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


class Way:
    """How a case is run: `bf16+nhwc`."""

    def __init__(self, text: str) -> None:
        words = text.split("+")
        self.precision = words[0] if words[0] in PRECISIONS else ""
        self.nhwc = "nhwc" in words
        self.benchmark = "benchmark" in words
        self.fused = "fused" in words
        self.foreach = "foreach" in words
        self.compiled = "compiled" in words
        self.pinned = "pinned" in words
        self.backend = next((word for word in words if word in BACKENDS), None)

    def set_switches(self, torch: Any) -> None:
        """The process-wide switches that it needs."""
        allowed = self.precision != "fp32"
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed
        torch.backends.cudnn.benchmark = self.benchmark


def make_call(maker: Maker, call: dict[str, Any], way: Way) -> Call:
    """What is called to run the case once."""
    name = call["op"].removeprefix("aten::")
    special = SPECIAL.get(name)
    if special is not None:
        return special(maker, call, way)
    arguments = maker.arguments(call, way.precision)
    if way.nhwc:
        arguments = [_nhwc(maker.torch, each) for each in arguments]
    # A call of the overload whose schema takes these arguments.
    function, plain, named, _ = overload_of(maker.torch, name, arguments)
    return lambda: function(*plain, **named)


def overload_of(
    torch: Any, name: str, arguments: list[Any]
) -> tuple[Any, list[Any], dict[str, Any], Any]:
    """The overload whose schema takes these arguments, with them as it takes them, and what it
    made of them."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        raise UnbuildableError(f"there is no aten::{name} in torch {torch.__version__}")
    problem: Exception | None = None
    # What writes into a tensor that is given comes last.
    for overload in sorted(packet.overloads(), key=lambda name: "out" in name):
        function = getattr(packet, overload)
        schema = function._schema.arguments  # noqa: SLF001 - torch says nowhere else what an overload takes
        if len(schema) < len(arguments):
            continue
        try:
            given = [
                _as(torch, each, value) for each, value in zip(schema, arguments, strict=False)
            ]
            plain = [v for s, v in zip(schema, given, strict=False) if not s.kwarg_only]
            named = {s.name: v for s, v in zip(schema, given, strict=False) if s.kwarg_only}
            made = function(*plain, **named)
        except (RuntimeError, TypeError, ValueError) as wrong:
            problem = problem or wrong
            continue
        return function, plain, named, made
    raise UnbuildableError(str(problem or f"no overload of aten::{name} takes these arguments"))


def _as(torch: Any, argument: Any, value: Any) -> Any:
    """A recorded argument as its schema wants it; its default where nothing was recorded."""
    is_tensor = isinstance(value, torch.Tensor)
    wanted = str(argument.type)
    if ("Tensor" in wanted) != is_tensor and value is not None:
        raise TypeError(f"{argument.name} is a {wanted}")
    if value is None and not wanted.startswith("Optional"):
        if argument.has_default_value():
            return argument.default_value
        raise TypeError(f"{argument.name} was not recorded")
    if value is None and argument.has_default_value():
        return argument.default_value
    return value


def _nhwc(torch: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() not in (4, 5):
        return value
    last = torch.channels_last if value.dim() == 4 else torch.channels_last_3d
    return value.contiguous(memory_format=last)


def _convolution(maker: Maker, call: dict[str, Any], way: Way) -> Call:
    arguments = maker.arguments(call, way.precision)
    if way.nhwc:
        arguments = [_nhwc(maker.torch, each) for each in arguments]
    function = getattr(maker.torch.ops.aten, call["op"].removeprefix("aten::")).default
    return lambda: function(*arguments)


def _batch_norm(maker: Maker, call: dict[str, Any], way: Way) -> Call:
    """(image) and the pass: torch chooses the kernels by type and layout."""
    torch = maker.torch
    image = maker.arguments(call, way.precision)[0]
    if way.nhwc:
        image = _nhwc(torch, image)
    channels = image.shape[1]
    weight, bias, mean = (torch.randn(channels, device=maker.device) for _ in range(3))
    variance = torch.rand(channels, device=maker.device) + 0.5
    run = torch.nn.functional.batch_norm
    if call["op"] == "batch_norm":
        return lambda: run(image, mean, variance, weight, bias, training=True)
    leaves = [tensor.requires_grad_() for tensor in (image, weight, bias)]
    out = run(image, mean, variance, weight, bias, training=True)
    return _backward(torch, out, leaves)


def _backward(torch: Any, out: Any, leaves: list[Any]) -> Call:
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)


def _attention(maker: Maker, call: dict[str, Any], way: Way) -> Call:
    """(query, key, value, mask) as batch, heads, length, size; `causal` as the fifth."""
    torch = maker.torch
    precision = of_precision(call["types"][0], way.precision)
    query, key, value = (
        maker.tensor([b, length, h, d], [], precision).transpose(1, 2)
        for b, h, length, d in call["dims"][:3]
    )
    mask = None
    if call["dims"][3]:
        mask = maker.tensor(call["dims"][3], [], precision)
    causal = call["concrete"][4] == "causal"

    def run(*tensors: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            *tensors, attn_mask=mask, is_causal=causal
        )

    with _by_backend(way.backend):
        if call["op"] == "attention":
            return _in_backend(way.backend, lambda: run(query, key, value))
        leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
        return _backward(torch, run(*leaves), leaves)


@contextlib.contextmanager
def _by_backend(name: str | None) -> Iterator[None]:
    """Attention by one back end alone; where it refuses, its reason."""
    if name is None:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel([getattr(SDPBackend, BACKENDS[name])]):
                yield
        except RuntimeError as problem:
            reasons = [str(each.message).partition(" (Triggered")[0] for each in said]
            raise UnbuildableError("; ".join(reasons) or str(problem)) from None


def _in_backend(name: str | None, call: Call) -> Call:
    """The call, once here for the back end to refuse it, and then with as little around it as the
    back end's switches are."""
    if name is None:
        return call
    call()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = [getattr(SDPBackend, BACKENDS[name])]

    def run() -> Any:
        with sdpa_kernel(chosen):
            return call()

    return run


def _optimizer(maker: Maker, call: dict[str, Any], way: Way) -> Call:
    """A step of an optimizer's class over parameters of these sizes."""
    torch = maker.torch
    parameters = [
        torch.nn.Parameter(maker.tensor(dims, [], of_precision("fp32", way.precision)))
        for dims in call["dims"][0]
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    keywords: dict[str, Any] = {"fused": True} if way.fused else {"foreach": way.foreach}
    kind = call["concrete"][0]
    if kind == "SGD":
        keywords |= {"momentum": 0.9}
    optimizer: Any = getattr(torch.optim, kind)(parameters, lr=1e-9, **keywords)

    def step() -> None:
        optimizer.step()

    return step


def _copy(maker: Maker, call: dict[str, Any], way: Way) -> Call:
    """Copy of so many bytes to the device."""
    torch, (size,) = maker.torch, call["dims"][0]
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=way.pinned)
    target = torch.empty(size, dtype=torch.uint8, device=maker.device)
    return lambda: target.copy_(source, non_blocking=True)


def _cast(maker: Maker, call: dict[str, Any], way: Way) -> Call:
    """Cast to the way's type."""
    torch = maker.torch
    tensor = maker.tensor(call["dims"][0], [], call["types"][0])
    to = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(way.precision, torch.float32)
    return lambda: tensor.to(to)


SPECIAL: dict[str, Callable[[Maker, dict[str, Any], Way], Call]] = {
    "convolution": _convolution, "convolution_backward": _convolution, "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm, "attention": _attention, "attention_backward": _attention,
    "optimizer": _optimizer, "cast": _cast, "copy_to_device": _copy,
}  # fmt: skip
