"""The job's models and the switches of torch as a whole, read from real objects on the CPU."""

import inspect
import json
import time
import warnings
from types import SimpleNamespace
from typing import Any

from tests.installed import package

torch = package("torch")

from stepscope.capture.describe import flags
from stepscope.capture.describe import model as model_notes

nn: Any = torch.nn
Module: Any = nn.Module


class Net(Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 8, bias=False)
        self.third = self.second


def test_models_are_the_roots_and_count_shared_parameters_once() -> None:
    net, other = Net(), nn.Linear(2, 2)
    notes = model_notes.model_notes(torch, [*net.modules(), other, nn.ReLU()])
    largest, smallest = notes["models"]
    assert notes["num_models"] == 2
    assert (largest["class"], smallest["class"]) == ("Net", "Linear")
    assert largest["num_params"] == 4 * 8 + 8 + 8 * 8
    assert largest["num_tensors"] == 3
    assert largest["param_bytes"] == largest["num_params"] * 4
    assert largest["num_params_by_dtype"] == {"float32": largest["num_params"]}
    assert largest["shapes"][0] == {"shape": [8, 8], "num": 1}
    assert largest["module_classes"] == {"Net": 1, "Linear": 2}


def test_models_tell_the_frozen_and_the_lazy() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    net[0].bias.requires_grad_(False)
    notes = model_notes.model_notes(torch, list(net.modules()))["models"][0]
    assert (notes["num_params"], notes["num_trainable"], notes["num_unread"]) == (6, 4, 2)


def test_models_name_what_is_inside_the_wrappers() -> None:
    wrapped = nn.DataParallel(torch.compile(Net(), backend="eager"))
    notes = model_notes.model_notes(torch, list(nn.Module.modules(wrapped)))["models"][0]
    assert (notes["class"], notes["wraps"]) == ("DataParallel", "Net")


def test_models_that_hold_themselves_end() -> None:
    net = Net()
    net._modules["me"] = net
    outer = nn.Sequential(net)
    assert model_notes.model_notes(torch, [outer, net])["models"][0]["num_modules"] == 4


def test_models_are_walked_for_a_limited_time() -> None:
    times = iter([0, 1, *[10**12] * 20])
    notes = model_notes.model_notes(torch, list(Net().modules()), lambda: next(times))
    assert all(not model["is_whole"] for model in notes["models"])


def test_the_time_in_which_others_hold_the_thread_up_does_not_count() -> None:
    clock = inspect.signature(model_notes.model_notes).parameters["clock"].default
    assert clock is time.thread_time_ns


def test_flags_are_read_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notes = json.loads(json.dumps(flags.flag_notes(torch)))
    assert notes["float32_matmul_precision"] in {"highest", "high", "medium"}
    assert notes["matmul_tf32"] is False
    assert notes["autocast_cpu"] is False
    assert notes["default_dtype"] == "float32"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        notes = flags.flag_notes(torch)
    assert (notes["autocast_cpu"], notes["autocast_cpu_dtype"]) == (True, "bfloat16")


def test_flags_of_an_old_torch_fall_back_to_its_switch() -> None:
    old = SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True))
    notes = flags.flag_notes(
        SimpleNamespace(backends=SimpleNamespace(cuda=old, cudnn=SimpleNamespace(allow_tf32=False)))
    )
    assert (notes["matmul_tf32"], notes["conv_tf32"]) == (True, False)
    assert notes["sdp_flash"] is None


def test_what_the_allocator_had_is_told_once_a_device_is_used() -> None:
    names = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
    sizes = {name: (lambda size=size: size) for size, name in enumerate(names)}
    cuda = SimpleNamespace(is_initialized=lambda: False, **sizes)
    assert model_notes.memory_notes(SimpleNamespace(cuda=cuda)) is None
    cuda.is_initialized = lambda: True
    assert model_notes.memory_notes(SimpleNamespace(cuda=cuda)) == {
        "max_allocated_bytes": 0,
        "max_reserved_bytes": 1,
        "allocated_bytes": 2,
        "reserved_bytes": 3,
    }
