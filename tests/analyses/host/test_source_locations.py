"""Places: whose line a frame is, and which line and module work comes from."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyses.host.source_locations import (
    Owner,
    frames_at,
    line_of,
    owner_of,
    source_locations_of,
    stacks_of,
)
from stepscope.analyses.links import link
from stepscope.core.diagnosis import SourceLocation
from stepscope.core.trace import NONE, Kind, Trace
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from tests.shared_data import SHARED, needs_shared
from tests.tracing import Event, call, index_of, kernel, mark, op, python, trace_of

BIG = SHARED / "lab" / "formats" / "big_with_stack.pt.trace.json.gz"


def places(trace: Trace, *events: int, most: int = 3) -> tuple[SourceLocation, ...]:
    stacks = stacks_of(trace, link(trace))
    assert stacks is not None
    chosen = np.array(events, np.int64)
    return source_locations_of(stacks, chosen, trace.dur_ns[chosen].astype(np.float64), most)


def kernels(trace: Trace) -> list[int]:
    return [int(at) for at in np.flatnonzero(trace.is_kind(Kind.KERNEL))]


def launch(start: int, number: int, *, us: int = 10, **more: int) -> list[Event]:
    """An operator at `start` with a kernel of `us` nanoseconds."""
    return [
        op("aten::mm", start, start + 8, **more),
        call("cudaLaunchKernel", start + 2, start + 6, number),
        kernel("gemm", start + 10, start + 10 + us, number),
    ]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("train.py(42): training_step", Owner.USER),
        ("mypackage/models/block.py(7): forward", Owner.USER),
        ("/home/me/torch/train.py(3): main", Owner.USER),
        ("C:\\work\\train.py(3): main", Owner.USER),
        ("<ipython-input-3-abc>(5): train", Owner.USER),
        ("transformers/models/qwen2/modeling_qwen2.py(150): forward", Owner.LIBRARY),
        ("/opt/env/lib/python3.11/site-packages/somebody/model.py(9): forward", Owner.LIBRARY),
        ("torch/nn/modules/linear.py(130): forward", Owner.PLUMBING),
        ("/usr/lib/python3/dist-packages/torch/optim/adamw.py(3): step", Owner.PLUMBING),
        ("/home/me/pytorch/torch/nn/modules/linear.py(130): forward", Owner.PLUMBING),
        ("contextlib.py(141): __exit__", Owner.PLUMBING),
        ("logging/__init__.py(1517): debug", Owner.PLUMBING),
        ("/usr/lib/python3.11/threading.py(3): run", Owner.PLUMBING),
        ("threading.py(1032): _bootstrap", Owner.PLUMBING),
        ("<frozen importlib._bootstrap>(1167): _find", Owner.NOBODY),
        ("<built-in function linear>", Owner.NOBODY),
        ("nn.Module: Linear_0", Owner.NOBODY),
    ],
)
def test_frames_are_told_apart_by_their_path(name: str, owner: Owner) -> None:
    assert owner_of(name) is owner


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("train.py(42): training_step", "train.py:42 in training_step"),
        ("/home/me/project/models/block.py(7): forward", "models/block.py:7 in forward"),
        ("model.py(25): torch_dynamo_resume_in_forward_at_31", "model.py:31 in forward"),
        ("strange", "strange"),
    ],
)
def test_lines_are_written_with_their_folder_and_where_compiling_broke_off(
    name: str, line: str
) -> None:
    assert line_of(name) == line


def test_the_innermost_frame_of_the_user_is_named_not_torchs() -> None:
    trace = trace_of(
        python("train.py(90): main", 0, 1000),
        python("model.py(12): forward", 10, 900),
        python("contextlib.py(78): inner", 20, 800),
        python("torch/nn/functional.py(5): linear", 30, 700),
        python("<built-in function linear>", 40, 600),
        *launch(50, 1),
    )
    assert places(trace, *kernels(trace)) == (
        SourceLocation(line="model.py:12 in forward", module=None, share=1.0),
    )


def test_a_librarys_frame_is_named_where_the_user_has_none() -> None:
    library = python("transformers/models/bert/modeling_bert.py(465): forward", 10, 900)
    trace = trace_of(library, *launch(50, 1))
    assert places(trace, *kernels(trace))[0].line == "bert/modeling_bert.py:465 in forward"
    trace = trace_of(python("train.py(90): main", 0, 1000), library, *launch(50, 1))
    assert places(trace, *kernels(trace))[0].line == "train.py:90 in main"


def test_backward_comes_from_its_forward_operator() -> None:
    """Kernels of autograd's thread, which has no frames, by the sequence number; on the caller's
    own thread too."""
    for thread in ("autograd", "main"):
        trace = trace_of(
            python("train.py(90): step", 0, 1000),
            python("nn.Module: Block_3", 10, 90),
            python("model.py(12): forward", 20, 80),
            *launch(30, 1, us=5, sequence=7, fwd_thread=0),
            op(
                "autograd::engine::evaluate_function: MmBackward0",
                200,
                290,
                sequence=7,
                fwd_thread=1,
                thread=thread,
            ),
            op("MmBackward0", 210, 280, sequence=7, fwd_thread=1, thread=thread),
            op("aten::mm", 220, 270, thread=thread),
            call("cudaLaunchKernel", 230, 240, 2, thread=thread),
            kernel("gemm_back", 300, 320, 2),
        )
        back = index_of(trace, "gemm_back")
        assert places(trace, back) == (
            SourceLocation(line="model.py:12 in forward", module="Block_3", share=1.0),
        )


def test_a_backward_written_by_the_user_is_its_own_place() -> None:
    trace = trace_of(
        python("model.py(12): forward", 20, 80),
        op("MyFunction", 30, 40, sequence=7, fwd_thread=0),
        op(
            "autograd::engine::evaluate_function: MyFunctionBackward",
            200,
            290,
            sequence=7,
            fwd_thread=1,
            thread="autograd",
        ),
        python("ops.py(33): backward", 210, 280, thread="autograd"),
        call("cudaLaunchKernel", 230, 240, 2, thread="autograd"),
        kernel("custom", 300, 320, 2),
    )
    assert places(trace, index_of(trace, "custom"))[0].line == "ops.py:33 in backward"


def nested(*modules: str, start: int, number: int, us: int = 10) -> list[Event]:
    """A launch inside these modules, the outermost first."""
    around = [
        python(f"nn.Module: {name}", start + i, start + 100 - i) for i, name in enumerate(modules)
    ]
    return [
        *around,
        python("model.py(12): forward", start + 20, start + 80),
        *launch(start + 30, number, us=us),
    ]


def test_modules_are_a_path_and_many_alike_are_one() -> None:
    trace = trace_of(
        *(
            e
            for i in range(3)
            for e in nested("GPT_0", f"Block_{i}", f"Linear_{4 * i}", start=200 * i, number=i)
        )
    )
    assert places(trace, *kernels(trace))[0].module == "GPT_0 > Block_* > Linear_*"
    assert places(trace, kernels(trace)[1])[0].module == "GPT_0 > Block_1 > Linear_4"


def test_a_path_ends_where_most_of_the_cost_is_no_longer_in_one_class() -> None:
    kinds = ("Linear_0", "LayerNorm_0", "GELU_0")
    trace = trace_of(
        *(
            e
            for i, kind in enumerate(kinds)
            for e in nested("GPT_0", "Block_3", kind, start=200 * i, number=i)
        )
    )
    assert places(trace, *kernels(trace))[0].module == "GPT_0 > Block_3"


def test_a_long_path_is_shortened_in_the_middle() -> None:
    trace = trace_of(*nested("A_0", "B_0", "C_0", "D_0", "E_0", start=0, number=1))
    assert places(trace, *kernels(trace))[0].module == "A_0 > ... > D_0 > E_0"


def test_shares_are_of_all_the_cost_and_the_dearest_line_is_first() -> None:
    trace = trace_of(
        python("a.py(1): f", 0, 90),
        *launch(10, 1, us=10),
        python("b.py(2): g", 100, 190),
        *launch(110, 2, us=60),
        *launch(300, 3, us=30),
    )
    found = places(trace, *kernels(trace))
    assert [(place.line, round(place.share, 3)) for place in found] == [
        ("b.py:2 in g", 0.6),
        ("a.py:1 in f", 0.1),
    ]
    assert places(trace, *kernels(trace), most=1) == found[:1]


def test_without_frames_there_are_no_places() -> None:
    trace = trace_of(*launch(10, 1))
    assert stacks_of(trace, link(trace)) is None


def test_nothing_asked_and_what_is_in_no_frame_have_no_place() -> None:
    trace = trace_of(python("a.py(1): f", 500, 900), *launch(10, 1))
    assert places(trace) == ()
    assert places(trace, *kernels(trace)) == ()
    assert places(trace, NONE) == ()


def test_what_was_open_at_a_moment() -> None:
    trace = trace_of(
        python("a.py(1): f", 0, 1000),
        python("b.py(2): g", 100, 200),
        mark("range", 300, 400),
        python("c.py(3): h", 310, 390, thread="other"),
    )
    stacks = stacks_of(trace, link(trace))
    assert stacks is not None
    main = np.array([trace.threads[code].tid == "main" for code in trace.thread.tolist()])
    found = frames_at(stacks, np.array([-5, 50, 150, 250, 350, 2000]), main)
    assert [None if at == NONE else trace.names[trace.name[at]] for at in found.tolist()] == [
        None, "a.py(1): f", "b.py(2): g", "a.py(1): f", "a.py(1): f", None
    ]  # fmt: skip


@needs_shared
def test_a_recorded_run_has_a_place_for_nearly_all_its_work() -> None:
    """A GPT of 24 blocks: forward and backward are charged to its two `forward`s, loss and
    optimizer to the step."""
    trace = read_trace(Source(path=BIG, label=BIG.name), use_cache=False)
    found = places(trace, *kernels(trace), most=10)
    assert sum(place.share for place in found) > 0.95
    assert [place.line for place in found[:2]] == ["lab.py:25 in forward", "lab.py:131 in step"]
    assert found[0].module is not None
    assert found[0].module.startswith("GPT_0 > Block_*")
    assert found[0].share > 0.6
