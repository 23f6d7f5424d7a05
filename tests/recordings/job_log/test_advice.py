"""What PyTorch said becomes advice of the rule whose fault it is, with the line; a topology speaks
where collectives weigh."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.job_output import Hang, JobOutput, OutOfMemory, Said
from stepscope.core.recordings.system import DeviceLinks, Topology
from stepscope.readers.format import Source
from stepscope.recordings.job_log import advice as job_words
from stepscope.recordings.job_log import killed_workers
from stepscope.recordings.job_log import log as job_log
from stepscope.recordings.job_log.lines import MEANS
from stepscope.rules.advice import advise, joined
from stepscope.rules.comms import slow_link
from stepscope.rules.registry import every_rule
from tests.recording_texts import system_report, texts_of, training_log
from tests.scenarios import FINDINGS
from tests.wording import any_mentions, mentions

GB = 10**9
FAILED = OutOfMemory(
    line=9,
    num=2,
    tried_bytes=2 * GB,
    total_bytes=80 * GB,
    free_bytes=GB,
    own_bytes=79 * GB,
    allocated_bytes=70 * GB,
    idle_bytes=0,
)
NCCL_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def beside_of(*warnings: Said, **more: object) -> Auxiliary:
    output = JobOutput(path="job.log", num_lines=9, num_read=9, said=warnings)
    return Auxiliary(training=training_log(outputs=(replace(output, **more),)))


def test_every_kind_has_its_meaning_and_every_advice_a_known_rule() -> None:
    assert {"attention kernels", job_words.NO_EXPANSION, *killed_workers.WHY} <= MEANS.keys()
    assert {code for code, _, _ in job_words.ADVICE.values()} <= job_words.BOUNDS.keys()
    assert job_words.BOUNDS.items() <= {rule.code: rule.bound for rule in every_rule()}.items()


@pytest.mark.parametrize("kind", job_words.ADVICE)
def test_a_warning_is_advice_with_its_line_and_no_weight(kind: str) -> None:
    found = advise(
        beside_of(
            Said(kind=kind, text="the text", line=7, num=3, ranks=(0, 1, 2), numbers=(64, 16))
        )
    )
    (one,) = found
    assert one.code == job_words.ADVICE[kind][0]
    assert one.evidence == ("job.log:7: the text (3 times, rank 0-2)",)
    assert (one.weight, one.weight_of) == (None, "")
    assert "{" not in one.summary + one.action


def test_what_is_no_fault_is_no_advice() -> None:
    advised = {*job_words.ADVICE, *killed_workers.WHY}
    quiet = [kind for kind in MEANS if kind not in advised]
    assert (
        advise(
            beside_of(*(Said(kind=kind, text="x", line=1, num=1, numbers=(1,)) for kind in quiet))
        )
        == ()
    )
    assert advise(Auxiliary()) == ()


def test_beside_a_finding_its_line_is_evidence() -> None:
    found = advise(beside_of(Said(kind="unused parameters", text="the text", line=7, num=1)))
    finding = replace(FINDINGS[0], code="unused-parameter-scan", evidence=("seen",))
    (told,), rest = joined([finding], found)
    assert told.evidence == ("seen", "job.log:7: the text")
    assert rest == ()


def test_memory_that_is_full_and_memory_in_pieces_are_two_faults() -> None:
    (full,) = advise(beside_of(failures=(FAILED,)))
    assert full.code == "memory-pressure"
    assert mentions(full.summary, "2.00 GB", "70.00 GB of 80.00 GB")
    assert full.weight == pytest.approx(70 / 80)
    assert full.weight_of == "the device's memory"
    assert full.action.startswith("a smaller batch")
    apart = replace(FAILED, idle_bytes=20 * GB, allocated_bytes=50 * GB)
    (pieces,) = advise(beside_of(failures=(apart,)))
    assert pieces.code == "fragmentation"
    assert pieces.weight == pytest.approx(20 / 80)
    assert "expandable_segments:True" in pieces.action
    (stuck,) = advise(
        beside_of(Said(kind="no expandable segments", text="", line=1, num=1), failures=(apart,))
    )
    assert "expandable_segments" not in stuck.action


def test_others_on_the_device_are_named_first() -> None:
    (one,) = advise(
        beside_of(failures=(replace(FAILED, own_bytes=30 * GB, allocated_bytes=25 * GB),))
    )
    assert mentions(one.action, "49.00 GB", "other processes")
    (unknown,) = advise(beside_of(failures=(replace(FAILED, own_bytes=None),)))
    assert unknown.action.startswith("a smaller batch")


def test_the_rank_that_did_not_come_is_the_late_one() -> None:
    hang = Hang(
        line=4, op="ALLREDUCE", sequence=1580, timeout_s=600.0, waiting=(0, 1, 3), behind=(2,)
    )
    (named,) = advise(beside_of(hangs=(hang,)))
    assert named.code == "late-rank"
    assert mentions(named.summary, "rank 2", "ALLREDUCE number 1580", "others waited 600 s")
    (why,) = named.evidence
    assert why.startswith("job.log:4: ")
    assert mentions(why, "rank 0-1, 3 waited 600 s", "ALLREDUCE number 1580", "rank 2 had not")
    (unnamed,) = advise(beside_of(hangs=(replace(hang, behind=()),)))
    assert mentions(unnamed.summary, "no line", "which rank")


def topology(link: str) -> Auxiliary:
    devices = (
        DeviceLinks(name="GPU0", peers={"GPU1": link}),
        DeviceLinks(name="GPU1", peers={"GPU0": link}),
    )
    return Auxiliary(
        system=system_report(
            topologies=(Topology(path="topo.txt", tool="nvidia-smi topo", devices=devices),)
        )
    )


def test_a_way_through_the_host_matters_where_collectives_weigh() -> None:
    shares = {NCCL_KERNEL: 0.3, "sm90_gemm": 0.5}
    (one,) = slow_link.advise(replace(topology("SYS"), kernel_shares=shares))
    assert isinstance(one, Advice)
    assert (one.code, one.weight, one.weight_of, one.kernels) == (
        "slow-link",
        0.3,
        "the step",
        (NCCL_KERNEL,),
    )
    assert mentions(one.summary, "1 of 1 pairs", "host alone")
    assert slow_link.advise(replace(topology("NV18"), kernel_shares=shares)) == []
    assert slow_link.advise(replace(topology("SYS"), kernel_shares={NCCL_KERNEL: 0.01})) == []
    (alone,) = slow_link.advise(topology("SYS"))
    assert (alone.code, alone.weight) == ("slow-link", None), "what it costs is not known"
    assert slow_link.advise(topology("NV18")) == []


def test_what_miopen_says_is_told_and_its_faults_are_advice(tmp_path: Path) -> None:
    """Lines as MIOpen prints them: src/conv/solver_finders.cpp, src/ocl/convolutionocl.cpp,
    src/include/miopen/sqlite_db.hpp."""
    path = tmp_path / "job.log"
    path.write_text(
        "MIOpen(HIP): Info [GetFindModeValueImpl] MIOPEN_FIND_MODE = FAST(2)\n"
        "MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1030_36.kdb "
        "Performance may degrade. Please ...\n"
        "MIOpen(HIP): Warning [IsEnoughWorkspace] [GetSolutionsFallback WTI] Solver "
        "<GemmFwdRest>, workspace required: 25657344,"
        " provided ptr: 0 size: 0\n"
        + "".join(
            "MIOpen(HIP): Warning [IsEnoughWorkspace] [EvaluateInvokers] Solver <GemmFwdRest>, "
            f"workspace required: {size},"
            " provided ptr: 0x7f0f15e00000 size: 4096\n"
            for size in (25657344, 59867136, 1234567)
        )
        + "MIOpen(HIP): Info [FindConvFwdAlgorithm] FW Chosen Algorithm: ConvDirectNaiveConvFwd "
        ", 0, 1.2\n"
        "MIOpen(HIP): Info [FindConvFwdAlgorithm] FW Chosen Algorithm: GemmFwdRest , 7225344, 0.4\n"
        "MIOpen(HIP): Warning [Monitor] ConvAsm1x1U: Searching the best solution among 1234...\n"
    )
    log = job_log.read([Source(path=path, label="job.log")])
    (output,) = log.outputs
    assert {one.kind: one.num for one in output.said} == {
        "MIOpen: fast find": 1,
        "MIOpen: no kernel db": 1,
        "MIOpen: solver passed over": 1,
        "MIOpen: solver left out": 3,
        "MIOpen: naive kernel": 1,
        "MIOpen: tunes": 1,
    }
    assert mentions(texts_of(log)[0].pairs[0][1], "8 of")
    advice = job_words.advise(Auxiliary(training=log))
    assert {one.code for one in advice} == {"untuned-convolution"}
    assert len(advice) == 3, "a missing kernel db and solvers passed over are no faults"
    assert any_mentions((one.summary for one in advice), "25,657,344 bytes", "4,096")
