from stepscope.rules.compute import needless_recompute
from stepscope.rules.proposal import Proposal
from tests.ranges import left_open
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch

HALF = '["c10::BFloat16", "c10::BFloat16"]'


def product(rows: int = 8192, **more: object) -> Launch:
    return launch("aten::mm", "nvjet_a", 100.0, f"[[{rows}, 4096], [4096, 4096]]", HALF, **more)  # type: ignore[arg-type]


def test_needless_recompute_drops_the_second_run() -> None:
    case = case_of_steps(
        product(sequence=5),
        product(sequence=9, node="MmBackward0", again=True),
        product(sequence=5, node="MmBackward0"),
    )
    proposal = needless_recompute.propose(case)
    assert isinstance(proposal, Proposal)
    finding = finding_of(case, proposal)
    assert abs(finding.predicted_speedup - 1.5) < 0.05
    assert "GB" in " ".join(finding.evidence)


def test_needless_recompute_is_silent_without_a_second_run() -> None:
    assert (
        needless_recompute.propose(
            case_of_steps(product(sequence=5), product(sequence=5, node="MmBackward0"))
        )
        is None
    )


def test_needless_recompute_promises_only_what_fits() -> None:
    rows = 2**25  # one output takes 275 GB
    case = case_of_steps(
        product(rows, sequence=5),
        product(rows, sequence=9, node="MmBackward0", again=True),
        product(rows, sequence=5, node="MmBackward0"),
    )
    proposal = needless_recompute.propose(case)
    assert isinstance(proposal, Proposal)
    assert left_open(finding_of(case, proposal))[0] < 1.3
