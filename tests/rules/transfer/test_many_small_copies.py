"""many-small-copies: each costs its start."""

from __future__ import annotations

from tests.ranges import left_open
from tests.rules.recorded import PAGEABLE, US, Run
from tests.tracing import op


def scalars(number: int, *, host_us: int = 20, kernel_us: int = 1_000) -> Run:
    run = Run()
    for _ in range(4):
        run.step()
        for _ in range(number):
            run.copy(PAGEABLE, 8, 2, host_us=host_us)
        run.launch(kernel_us)
        run.sync()
    return run


def test_hundreds_of_scalars_cost_their_starts() -> None:
    # 200 copies at 20 us of host time each, and 1 ms of kernel: 5 ms become about 1.
    run = scalars(200)
    assert 3.0 < run.gain("many-small-copies") < 5.5


def test_copies_with_kernels_between_may_not_be_merged() -> None:
    run = Run()
    for _ in range(4):
        run.step()
        for _ in range(50):
            run.copy(PAGEABLE, 8, 2, host_us=20)
            run.launch(1)
        run.sync()
    finding = run.finding("many-small-copies")
    assert finding is not None
    assert finding.predicted_low < 1.01 < finding.predicted_speedup


def test_a_batch_of_few_tensors_or_a_busy_device_is_innocent() -> None:
    assert scalars(6).gain("many-small-copies") == 1.0
    run = Run()
    for _ in range(4):
        run.step()
        for _ in range(30):
            run.copy(PAGEABLE, 8, 2, host_us=20)
        run.launch(20_000)
    assert run.gain("many-small-copies") < 1.02


def test_what_makes_a_copys_tensor_goes_with_the_copy() -> None:
    run, long = Run(), Run()
    for each, making_us in ((run, 30), (long, 300)):
        for _ in range(4):
            each.step()
            for _ in range(50):
                each.host(making_us)
                each.copy(PAGEABLE, 8, 2, host_us=20)
            each.launch(1_000)
            each.sync()
    # Of 3.5 ms the kernel's is left; 300 us are more than making a tensor takes.
    assert 2.5 < run.gain("many-small-copies") < 3.6
    assert long.gain("many-small-copies") < 1.1


def test_putting_the_copies_together_may_go_with_them_on_the_device_alone() -> None:
    """A collate function may pad on the host as well, which no copy has to do with."""
    on_device, on_host = Run(), Run()
    for run, launches in ((on_device, 50), (on_host, 0)):
        for _ in range(4):
            run.step()
            for _ in range(50):
                run.copy(PAGEABLE, 8, 2, host_us=20)
            began = run.now
            for _ in range(launches):
                run.launch(1, host_us=20)
            run.now = began + 1_000
            run.events.append(op("aten::pad_sequence", began * US, run.now * US))
            run.launch(1_000)
            run.sync()
    merged = [run.finding("many-small-copies") for run in (on_device, on_host)]
    assert all(finding is not None for finding in merged)
    highs = [left_open(finding)[1] for finding in merged if finding is not None]
    assert highs[0] > 1.4 * highs[1]
