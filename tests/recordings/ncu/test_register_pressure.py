"""register-pressure: spills, by their instructions, or by local memory where these were not
counted."""

from __future__ import annotations

from stepscope.recordings.ncu.register_pressure import advise
from tests.rules.kernels import beside, healthy_gemm, kernel, recorded
from tests.wording import mentions

SECTORS = {"global_load_sectors": 500.0, "global_store_sectors": 500.0}


def test_spill_instructions() -> None:
    (advice,) = advise(beside(kernel(spill_instructions=120.0, instructions=1000.0, registers=32)))
    assert advice.code == "register-pressure"
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "12.0%", "spill", "32 registers")


def test_a_few_spills_and_counted_zero_are_nothing() -> None:
    assert advise(beside(kernel(spill_instructions=5.0, instructions=1000.0))) == ()
    array = kernel(spill_instructions=0.0, instructions=1000.0, local_bytes=1e9, **SECTORS)
    assert advise(beside(array)) == (), "local memory that no spill made"


def test_local_memory_where_spills_were_not_counted() -> None:
    (advice,) = advise(beside(kernel(local_bytes=32 * 1000.0, **SECTORS)))
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "50%", "local memory")
    assert mentions(advice.summary, "arrays"), "which of the two was not counted"
    assert advise(beside(kernel(local_bytes=32 * 50.0, **SECTORS))) == ()
    assert advise(beside(kernel(local_bytes=32 * 1000.0))) == (), "a share of what was not measured"
    assert advise(beside(kernel())) == ()


def test_healthy_gemm() -> None:
    assert advise(beside(healthy_gemm())) == ()


def test_recorded_step_has_none() -> None:
    assert advise(recorded()) == ()
