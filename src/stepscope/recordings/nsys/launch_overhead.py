"""launch-overhead: what totals of kernels show."""

from __future__ import annotations

from msgspec import Struct

from stepscope.api import Advice, Auxiliary
from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.kernels import NAME_CHARS
from stepscope.recordings.nsys.totals import has_only_operators, kernel_totals

CODE = "launch-overhead"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    quick_launch_ns: float = 5_000.0
    """Nanoseconds of the host's time for one launch from PyTorch: the quickest median of 40
    recordings of different hosts and models (5.1 to 13.9 us, half of them under 7.7)."""
    least_launches: int = 1_000
    """Launches of short kernels from which totals stand for a run."""
    short_share: float = 0.5
    """Share of the launches that must be of short kernels."""


POLICY = Policy()


def _most(auxiliary: Auxiliary) -> str:
    """What takes the most of the host's own time."""
    report = auxiliary.kernels
    others = () if report is None else [each for one in report.recordings for each in one.others]
    rows = [row for each in others if not each.unit for row in each.rows]
    whole_ns = sum(row.total_ns for row in rows)
    if not whole_ns:
        return ""
    top = max(rows, key=lambda row: row.total_ns)
    share = top.total_ns / whole_ns
    return f"; on the host {top.name[:NAME_CHARS]} takes the most, {share:.0%} of what it lists"


def advise(auxiliary: Auxiliary) -> Advice | Abstention | None:
    """Advise by totals alone: most launches are of kernels that are over before the host makes the
    next."""
    if has_only_operators(auxiliary):
        return Abstention(
            code=CODE,
            reason=f"the table has no time on a device{_most(auxiliary)}",
            needs="a trace of the device's work: activities=[ProfilerActivity.CPU, "
            "ProfilerActivity.CUDA], or nsys stats --report cuda_gpu_kern_sum",
        )
    rows = [row for row in kernel_totals(auxiliary) if row.count]
    short = [row for row in rows if row.total_ns / row.count < POLICY.quick_launch_ns]
    launches, short_launches = (sum(row.count for row in each) for each in (rows, short))
    if short_launches < max(POLICY.least_launches, POLICY.short_share * launches):
        return None
    mean_ns = sum(row.total_ns for row in short) / short_launches
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{short_launches:,} of {launches:,} kernels take {mean_ns / 1e3:.1f} us in the "
        "mean: each is over before the host launches the next.",
        action="torch.compile(mode='reduce-overhead') or a larger batch; a trace (stepscope run) "
        "says what it gives",
        evidence=tuple(
            f"{row.name[:NAME_CHARS]}: {row.count:,} of {row.total_ns / row.count / 1e3:.1f} us"
            for row in sorted(short, key=lambda row: -row.count)[:3]
        ),
        weight=short_launches / launches,
        weight_of="the launches",
    )
