"""What each back end of scaled_dot_product_attention takes for a run's sizes, or why it refuses
them, where that was timed on the device."""

from __future__ import annotations

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.hardware import OperatorCall, ProbeCase
from stepscope.rules.shared.measured import probed_time

BACKENDS = ("flash", "efficient", "cudnn", "math")
LATER = 1e-3
"""Fraction of a gain's weight that back ends get whose times are only reported: they are timed
after what a gain hangs on."""
MAX_REASON_CHARS = 90


def backends_line(
    roofs: DevicePeaks, call: OperatorCall, precision: str, weight_ns: float
) -> tuple[str, ...]:
    """Line of evidence; nothing where none was timed."""
    timed: list[tuple[float, str]] = []
    refused = []
    for name in BACKENDS:
        way = f"{precision}+{name}"
        found = probed_time(roofs, call, way, LATER * weight_ns)
        if found is not None:
            timed.append((found.ns, f"{name} {found.ns / 1e3:,.0f} us"))
            continue
        case = ProbeCase(call=call, way=way)
        why = None if roofs.probed is None else roofs.probed.problems.get(case)
        if why is not None:
            refused.append(f"{name} refuses: {why[:MAX_REASON_CHARS]}")
    if not timed and not refused:
        return ()
    words = ", ".join(text for _, text in sorted(timed))
    return ("; ".join(["timed on this device, going forward: " + (words or "none"), *refused]),)
