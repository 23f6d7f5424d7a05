"""Back ends of attention are said with their times, and why one refuses."""

from __future__ import annotations

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.hardware import MeasuredTime, ProbeCase, ProbedTimes
from stepscope.hardware.lookup import find_spec
from stepscope.rules.shared.attention_backends import BACKENDS, backends_line
from stepscope.rules.shared.measured import attention_call
from tests.rules import steps

QUERY = (2, 4, 128, 64)
CALL = attention_call(QUERY, QUERY, QUERY, (), causal=True, backward=False)


def roofs(probed: ProbedTimes) -> DevicePeaks:
    spec = find_spec(steps.H200)
    assert spec is not None
    return DevicePeaks(spec=spec, probed=probed)


def of(name: str) -> ProbeCase:
    return ProbeCase(call=CALL, way=f"bf16+{name}")


def test_nothing_is_said_of_what_was_not_timed_and_all_are_asked_for() -> None:
    probed = ProbedTimes()
    assert backends_line(roofs(probed), CALL, "bf16", 1e6) == ()
    assert set(probed.asked) == {of(name) for name in BACKENDS}
    assert all(weight < 1e6 for weight in probed.asked.values()), "after what a gain hangs on"


def test_the_quickest_comes_first_and_a_refusal_has_its_reason() -> None:
    times = {
        of(name): MeasuredTime(ns=ns, low_ns=ns, high_ns=ns, samples=5)
        for name, ns in (("efficient", 21e3), ("flash", 12e3))
    }
    problems = {of("cudnn"): "Both fused kernels require query, key and value to be half"}
    (line,) = backends_line(roofs(ProbedTimes(times=times, problems=problems)), CALL, "bf16", 1e6)
    assert line == (
        "timed on this device, going forward: flash 12 us, efficient 21 us; "
        "cudnn refuses: Both fused kernels require query, key and value to be half"
    )
