"""slow-link: large messages far under any link's rate; small ones, fast ones and waiting say
nothing of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.calibrated import SCHEMA, Calibrated, CollectivePoint, Machine, Timing
from stepscope.hardware.lookup import load_specs
from stepscope.rules.comms.slow_link import propose_job
from stepscope.rules.job_case import JobCase
from stepscope.rules.judge import judge
from tests.rules.job_cases import Fleet, ddp, gain
from tests.wording import mentions


def exchanging(size: int, us: float, host_us: tuple[float, float] = (10, 10)) -> Fleet:
    fleet = Fleet()
    for _ in range(4):
        fleet.host(host_us)
        for _ in range(10):
            fleet.compute(100)
        fleet.collective("all_reduce", size, us)
        fleet.step()
    return fleet


def test_a_gigabyte_a_second_is_slow() -> None:
    job = exchanging(10_000_000, 10_000).job()
    said = propose_job(job)
    assert said is not None
    assert "1.00 GB/s" in said.summary
    assert gain(job, said) == pytest.approx(11.0 / 1.8, rel=0.1)


@pytest.mark.parametrize(("size", "us"), [(10_000_000, 600), (100_000, 5_000)])
def test_fast_or_small_messages_are_no_slow_link(size: int, us: float) -> None:
    assert propose_job(exchanging(size, us).job()) is None


def test_what_a_messages_start_costs_is_no_slow_link() -> None:
    # 1.3 ms of start before bytes at 12.5 GB/s: a megabyte takes 1.4 ms, 0.8 GB/s.
    sizes = [(40_000_000, 4_500.0), *[(2_000_000, 1_460.0)] * 10, *[(1_100_000, 1_388.0)] * 10]
    assert propose_job(ddp(buckets=sizes).job()) is None
    slow = ddp(buckets=[(size, us + 9 * (us - 1_300)) for size, us in sizes]).job()
    said = propose_job(slow)
    assert said is not None
    assert "1.25 GB/s" in said.summary
    # The starts stay.
    alone = sum(us for _, us in sizes) / 1e3
    assert slow.step_interval_ns / gain(slow, said) / 1e6 >= alone


def test_a_line_of_the_jobs_own_code_comes_before_a_link_that_nothing_says_is_faster() -> None:
    small = ddp(buckets=[(40_000_000, 80_000.0), *[(2_000_000, 14_000.0)] * 20]).job()
    codes = [finding.code for finding in judge(small).findings]
    assert codes.index("slow-link") == codes.index("tiny-buckets") + 1


def test_waiting_for_a_late_rank_is_no_slow_link() -> None:
    assert propose_job(exchanging(10_000_000, 600, host_us=(10, 20_000)).job()) is None


def machine(bus_bytes_per_s: float, **told: object) -> Calibrated:
    """Four devices whose all-reduces of 1 GB reach this; a small one, and one over nodes, must not
    count."""

    def point(tier: str, size: int, rate: float) -> CollectivePoint:
        seconds = size * 1.5 / rate
        time = Timing(seconds=seconds, low_s=seconds, high_s=seconds, repeats=9)
        return CollectivePoint(
            kind="all_reduce", backend="nccl", tier=tier, group_size=4, size_bytes=size, time=time
        )

    points = (
        point("node", 10**9, bus_bytes_per_s),
        point("node", 10**3, 1e6),
        point("across", 10**9, 3e9),
    )
    return Calibrated(
        schema=SCHEMA,
        made_by="test",
        date="2026-11-16",
        how="",
        machine=Machine(kind="cuda", device="H200", **{"num_devices": 4, **told}),  # type: ignore[arg-type]
        collectives=points,
    )


def knowing(job: JobCase, measured: Calibrated) -> JobCase:
    spec = next(each for each in load_specs() if "H200" in each.name)
    cases = [
        replace(
            case, context=replace(case.context, roofs=DevicePeaks(spec=spec, measured=measured))
        )
        for case in job.cases
    ]
    return replace(job, cases=tuple(cases))


def test_a_calibrated_machine_expects_what_its_own_collectives_reached() -> None:
    # 10 MB in 200 us over two ranks: 50 GB/s, fast for a port and slow for links that were seen to
    # reach 350.
    job = exchanging(10_000_000, 200).job()
    assert propose_job(job) is None
    said = propose_job(knowing(job, machine(350e9)))
    assert said is not None
    assert mentions(said.summary, "50.00 GB/s", "calibrated", "350 here")
    assert propose_job(knowing(job, machine(100e9))) is None


def test_ranks_on_more_devices_than_a_node_has_are_held_against_the_network() -> None:
    job = exchanging(10_000_000, 10_000).job()
    assert propose_job(knowing(job, machine(350e9, num_devices=1))) is not None
    assert machine(350e9, num_devices=1).bus_bytes_per_s(2) == pytest.approx(3e9)
    # Measured on one device that all ranks shared, it says nothing of links.
    assert machine(350e9, ranks_share_a_device=True).bus_bytes_per_s(2) is None


def test_the_ledger_names_the_measured_link() -> None:
    job = knowing(exchanging(10_000_000, 200).job(), machine(350e9))
    context = job.cases[0].context
    link = collective_records_of(context, 0).link
    assert link is not None
    assert link[:2] == ("nvlink", 450e9)
    meta = replace(context.trace.meta, world_size=2)
    sized = replace(context, trace=replace(context.trace, meta=meta))
    name, rate, source = collective_records_of(sized, 0).link or ("", 0.0, "")
    assert name == "collectives"
    assert rate == pytest.approx(350e9)
    assert mentions(source, "measured", "2026-11-16")


def placed(job: JobCase, *nodes: str) -> JobCase:
    """On devices that are known, at nodes that are."""
    spec = next(each for each in load_specs() if "H200" in each.name)
    known = [
        replace(case, context=replace(case.context, roofs=DevicePeaks(spec=spec)))
        for case in job.cases
    ]
    records = tuple(
        structs.replace(own, node=node) for own, node in zip(job.rank_records, nodes, strict=True)
    )
    return replace(job, cases=tuple(known), rank_records=records)


def test_ranks_of_one_node_are_held_against_the_link_of_their_devices() -> None:
    # 100 MB in 2 ms: 50 GB/s.
    job = exchanging(100_000_000, 2_000).job()
    assert propose_job(job) is None
    said = propose_job(placed(job, "one", "one"))
    assert said is not None
    assert mentions(said.summary, "node is 450", "333")
    assert propose_job(placed(job, "one", "two")) is None


def test_ranks_of_several_nodes_are_held_against_the_usual_network() -> None:
    # 100 MB in 8 ms: 12.5 GB/s, a quarter of the card that such a device has to itself.
    job = exchanging(100_000_000, 8_000).job()
    assert propose_job(job) is None
    said = propose_job(placed(job, "one", "two"))
    assert said is not None
    assert mentions(said.summary, "between nodes", "is 50")


def test_messages_of_a_few_hops_say_nothing_of_a_fast_link() -> None:
    # 2 MB take 4 us on NVLink, less than its hops.
    assert propose_job(placed(exchanging(2_000_000, 60).job(), "one", "one")) is None
