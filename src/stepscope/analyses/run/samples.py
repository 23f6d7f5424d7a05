"""Single numbers out of what a rank writes while it runs:
RUN/rank-N/samples.jsonl and steps.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.protocol.untrusted import finite, objects_at, whole

Sample = Mapping[str, Any]


def rss_bytes(sample: Sample) -> int | None:
    """Memory of the process on the host."""
    return whole(sample.get("rss_bytes"))


def gpu_util(sample: Sample) -> float | None:
    """Share of the time in which kernels ran, by the driver; the mean over devices."""
    percents = [finite(device.get("gpu_util_percent")) for device in objects_at(sample, "devices")]
    shares = [percent / 100 for percent in percents if percent is not None]
    return sum(shares) / len(shares) if shares else None
