from __future__ import annotations

from stepscope.analyses.links import collective_kernels, library_collectives, link
from stepscope.core.trace import NONE
from tests.tracing import call, copy, index_of, kernel, mark, op, trace_of


def test_work_is_linked_to_its_call_and_to_the_operator_around_it() -> None:
    trace = trace_of(
        op("aten::mm", 0, 50), call("cudaLaunchKernel", 10, 20, 1), kernel("gemm", 30, 90, 1)
    )
    links, at = link(trace), index_of(trace, "gemm")
    assert links.launch[at] == index_of(trace, "cudaLaunchKernel")
    assert links.op[at] == index_of(trace, "aten::mm")
    assert not links.shared[at]


def test_a_graph_launch_links_one_call_to_many_kernels() -> None:
    trace = trace_of(
        call("cudaGraphLaunch", 0, 9, 5), *(kernel(f"k{i}", 10 + i, 11 + i, 5) for i in range(4))
    )
    links = link(trace)
    kernels = [index_of(trace, f"k{i}") for i in range(4)]
    assert links.launch[kernels].tolist() == [index_of(trace, "cudaGraphLaunch")] * 4
    assert links.shared[kernels].all()


def test_a_launch_after_the_work_had_begun_is_no_launch() -> None:
    trace = trace_of(
        kernel("early", 0, 5_000_000, 1), call("cudaLaunchKernel", 60_000_000, 60_000_100, 1)
    )
    assert link(trace).launch[index_of(trace, "early")] == NONE


def test_without_runtime_calls_the_external_id_links() -> None:
    trace = trace_of(op("aten::add", 0, 20, external=44), kernel("add", 30, 40, external=44))
    links = link(trace)
    assert links.launch[index_of(trace, "add")] == index_of(trace, "aten::add")


def test_an_operator_whose_calls_were_not_recorded_is_no_graph() -> None:
    trace = trace_of(
        op("aten::add", 0, 20, external=44),
        kernel("a", 30, 40, external=44),
        kernel("b", 50, 60, external=44),
    )
    assert not link(trace).shared.any()


def test_nested_runtime_calls_are_stepped_out_of() -> None:
    trace = trace_of(
        op("aten::mm", 0, 50),
        call("cudaLaunchKernelExC", 5, 30, 1),
        call("cuLaunchKernelEx", 10, 20, 2),
        kernel("g", 30, 40, 2),
    )
    assert link(trace).op[index_of(trace, "g")] == index_of(trace, "aten::mm")


def test_collectives_are_known_by_library_and_by_the_op_that_launched_them() -> None:
    trace = trace_of(
        mark("nccl:all_reduce", 0, 10),
        call("cudaLaunchKernel", 1, 2, 1),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 3, 9, 1),
        op("symm_mem::multimem_all_reduce_", 20, 30),
        call("cudaLaunchKernel", 21, 22, 2),
        kernel("multimem_all_reduce_kernel", 23, 29, 2),
        op("aten::mul", 40, 50),
        call("cudaLaunchKernel", 41, 42, 3),
        kernel("vectorized_elementwise_kernel", 43, 49, 3),
        copy("Memcpy DtoD (ncclLooking)", 60, 70),
    )
    links = link(trace)
    wide = {
        trace.names[trace.name[i]] for i in collective_kernels(trace, links).nonzero()[0].tolist()
    }
    narrow = {trace.names[trace.name[i]] for i in library_collectives(trace).nonzero()[0].tolist()}
    assert narrow == {"ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"}
    assert wide == narrow | {"multimem_all_reduce_kernel"}
