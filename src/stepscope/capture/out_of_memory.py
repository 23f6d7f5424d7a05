"""A process that dies of memory that ran out: who asked, and what was held, written down as the
process ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepscope.capture.describe.knobs import LiveObjects, find_live_objects
from stepscope.capture.describe.peek import attempt
from stepscope.capture.describe.rank import rank_numbers
from stepscope.protocol.run_folder import FAILURE_NAME, write_json

MAX_MESSAGE = 4_000
MAX_CAUSES = 8
"""Exceptions that one was raised from, looked at."""
TORCH_PARTS = ("/torch/", "/functorch/", "/triton/")
OURS = os.path.dirname(os.path.dirname(__file__)).replace(os.sep, "/") + "/"
PHASES = (("/torch/optim/", "optimizer"), ("/torch/autograd/", "backward"))
MODULE_FILE, FUNCTIONAL_FILE = "/torch/nn/modules/module.py", "/torch/nn/functional.py"


def note_failure(session: Any) -> None:
    """Note the exception that ends the process, as it ends: Python has printed it by then, and
    keeps it, with all that its frames hold."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        _write_down(session, error)


def note_first_passes(session: Any) -> None:
    """Note the memory before the first update, which may hold more."""
    cuda = sys.modules["torch"].cuda
    if cuda.is_initialized():
        session.passed_bytes = cuda.max_memory_allocated()


def _write_down(session: Any, error: BaseException) -> None:
    torch = sys.modules["torch"]
    failure = _failure(torch, error)
    if failure is None:
        return
    notes = failure_notes(torch, failure)
    # The optimizer's step that failed is counted too.
    notes["step"] = max(session.step - (notes["phase"] == "optimizer"), 0)
    notes["passed_bytes"] = session.passed_bytes
    notes["rank"] = attempt(lambda: rank_numbers(torch)["rank"])
    folder: Path = session.run
    write_json(folder / FAILURE_NAME.format(pid=os.getpid()), notes)


def _failure(torch: Any, error: BaseException | None) -> BaseException | None:
    """The exception, or one that it was raised from, that is of memory."""
    kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    for _ in range(MAX_CAUSES):
        if error is None or isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None


def failure_notes(torch: Any, error: BaseException) -> dict[str, Any]:
    """What is known of it in the process that dies. Nothing is allocated on the device."""
    where, operator, phase = _where(error)
    cuda = torch.cuda
    has_device = cuda.is_initialized()
    live = find_live_objects(torch)
    return {
        "message": str(error)[:MAX_MESSAGE],
        "where": where,
        "operator": operator,
        "phase": phase,
        "capacity_bytes": attempt(_capacity, cuda) if has_device else None,
        "held_bytes": cuda.memory_allocated() if has_device else None,
        "most_held_bytes": cuda.max_memory_allocated() if has_device else None,
        "reserved_bytes": cuda.memory_reserved() if has_device else None,
        "sizes": attempt(live_sizes, torch, live) or {},
        "trained_bytes": attempt(_trained_bytes, torch, live),
        **(attempt(_optimizer_notes, live) or {}),
        **(attempt(_block_notes, torch, error, live) or {}),
    }


def _capacity(cuda: Any) -> int:
    return int(cuda.get_device_properties(cuda.current_device()).total_memory)


def _where(error: BaseException) -> tuple[str | None, str | None, str | None]:
    """The innermost line outside of torch and of the capture, and the function and the phase that
    torch's own lines show."""
    where = operator = phase = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename.replace(os.sep, "/")
        if not file.startswith(OURS) and not any(part in file for part in TORCH_PARTS):
            short = "/".join(file.split("/")[-2:])
            where = f"{code.co_name} ({short}:{trace.tb_lineno})"
        phase = next((name for part, name in PHASES if part in file), phase)
        if phase is None and file.endswith(MODULE_FILE):
            phase = "forward"
        if file.endswith(FUNCTIONAL_FILE):
            operator = code.co_name
        trace = trace.tb_next
    return where, operator, phase


def live_sizes(torch: Any, live: LiveObjects) -> dict[str, int]:
    """Bytes on the device of parameters, gradients and optimizer states, each storage once."""
    seen: set[int] = set()
    sizes = {"weights": 0, "gradients": 0, "optimizer": 0}
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        for module in live.modules:
            for held in (module._parameters, module._buffers):  # noqa: SLF001
                for tensor in list(held.values()):
                    sizes["weights"] += _new_bytes(torch, tensor, seen)
                    sizes["gradients"] += _new_bytes(torch, getattr(tensor, "grad", None), seen)
        for optimizer in live.optimizers:
            for tensor in _states(optimizer):
                sizes["optimizer"] += _new_bytes(torch, tensor, seen)
    return sizes


def _trained_bytes(torch: Any, live: LiveObjects) -> int:
    """Bytes of the parameters that get gradients."""
    seen: set[int] = set()
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        return sum(
            _new_bytes(torch, tensor, seen)
            for module in live.modules
            for tensor in list(module._parameters.values())  # noqa: SLF001
            if tensor is not None and tensor.requires_grad
        )


def _optimizer_notes(live: LiveObjects) -> dict[str, Any]:
    """Notes on the optimizer, where there is only one."""
    if len(live.optimizers) != 1:
        return {}
    (optimizer,) = live.optimizers
    fused = optimizer.defaults.get("fused")
    return {"optimizer": type(optimizer).__name__, "is_fused": bool(fused)}


def _block_notes(torch: Any, error: BaseException, live: LiveObjects) -> dict[str, Any]:
    """Notes on which of a row of equal modules the forward pass was in, the outermost row; and the
    layer with the widest output that is in no such row."""
    within = list(_modules_within(torch, error))
    modules = list(within[0].modules()) if within else live.modules
    head = attempt(_head, torch, modules)
    notes = {}
    if head is not None:
        notes["head_features"] = head.out_features
        notes["head_weight_bytes"] = head.weight.numel() * head.weight.element_size()
    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    for parent, child in pairwise(within):
        for held in (parent, *parent._modules.values()):  # noqa: SLF001
            row = list(held._modules.values()) if isinstance(held, lists) else []  # noqa: SLF001
            index = next((at for at, module in enumerate(row) if module is child), None)
            if index is not None and _are_equal(row):
                notes |= attempt(_input_notes, torch, error, child, head) or {}
                return {"block": index, "num_blocks": len(row), **notes}
    return notes


def _are_equal(modules: list[Any]) -> bool:
    return len({type(module) for module in modules}) == 1 < len(modules)


def _input_notes(torch: Any, error: BaseException, block: Any, head: Any) -> dict[str, Any]:
    """Rows of the tensor that the block was given, its bytes and an element's. A layer that takes
    rows of another width gets one of each sample, as after a mean over a picture."""
    trace = error.__traceback__
    while trace is not None:
        given = trace.tb_frame.f_locals
        if given.get("self") is block and trace.tb_frame.f_code.co_name == "forward":
            tensor = next(each for each in given.values() if isinstance(each, torch.Tensor))
            rows = tensor.numel() // tensor.shape[-1]
            if head is not None and head.in_features != tensor.shape[-1]:
                rows = tensor.shape[0]
            size = tensor.element_size()
            return {
                "num_rows": rows,
                "element_bytes": size,
                "input_bytes": size * tensor.numel(),
            }
        trace = trace.tb_next
    return {}


def _head(torch: Any, modules: list[Any]) -> Any:
    """The layer with the widest output among those that are in no row of equal blocks: a
    vocabulary's."""
    blocks: set[int] = set()
    for held in modules:
        row = list(held._modules.values())  # noqa: SLF001
        if isinstance(held, (torch.nn.ModuleList, torch.nn.Sequential)) and _are_equal(row):
            blocks.update(id(module) for block in row for module in block.modules())
    layers = [
        module
        for module in modules
        if isinstance(module, torch.nn.Linear) and id(module) not in blocks
    ]
    return max(layers, key=lambda layer: layer.out_features, default=None)


def _modules_within(torch: Any, error: BaseException) -> Iterator[Any]:
    """Modules that were called, the outermost first, each once."""
    last, trace = None, error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if issubclass(type(module), torch.nn.Module) and module is not last:
            yield module
            last = module
        trace = trace.tb_next


def _states(optimizer: Any) -> Iterator[Any]:
    for state in list(optimizer.state.values()):
        if isinstance(state, dict):
            yield from state.values()


def _new_bytes(torch: Any, tensor: Any, seen: set[int]) -> int:
    """Bytes of its storage on a device, where it was not counted before."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type == "cpu":
        return 0
    local = getattr(tensor, "_local_tensor", tensor)
    storage: Callable[[], Any] = local.untyped_storage
    address = storage().data_ptr()
    if address in seen:
        return 0
    seen.add(address)
    return int(storage().nbytes())
