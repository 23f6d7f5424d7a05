"""shallow-prefetch: every n-th step waits."""

from __future__ import annotations

from tests.rules.recorded import Run


def bursts(*waits_us: int) -> Run:
    run = Run()
    for wait in waits_us:
        run.step()
        run.fetch(wait)
        run.launch(10_000)
        run.sync()
    return run


def test_waits_at_equal_distances_are_bursts() -> None:
    judgement = bursts(*[20_000, 60, 60] * 4).judged()
    assert [remark.code for remark in judgement.remarks] == ["shallow-prefetch"]
    assert "every 3. step" in judgement.remarks[0].text


def test_irregular_or_constant_waits_are_not_bursts() -> None:
    for waits in ([20_000, 60, 20_000, 60, 60, 60, 20_000], [20_000] * 6, [60] * 6):
        judgement = bursts(*waits).judged()
        assert "shallow-prefetch" not in {remark.code for remark in judgement.remarks}
        assert "shallow-prefetch" not in {finding.code for finding in judgement.findings}
