"""What the replay itself leaves open of a gain, from the range that is printed."""

from __future__ import annotations

from stepscope.core.diagnosis import Finding
from stepscope.rules.accuracy import widened


def left_open(finding: Finding) -> tuple[float, float]:
    """The range before it was widened by the error of promises; not where it was cut at 1."""
    error = widened(1.0, 1.0, finding.predicted_speedup / finding.samples_times)[1]
    return finding.predicted_low * error, finding.predicted_high / error
