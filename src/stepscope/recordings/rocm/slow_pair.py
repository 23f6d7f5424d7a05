"""Two devices of a machine, or one and the host, copy far more slowly than they could.

What it sees: a test of copies between all pairs: two devices that reach each other no faster than
the host reaches them; a pair that is slower one way than the other; a device that the host reaches
more slowly than it reaches the others.

Why it costs: collectives go as fast as the slowest link of their ring. Devices without a link of
their own go through the host's memory, and share its bus with the input.

Evidence it needs: `rocm-bandwidth-test`, on a machine where nobody else works.

What to do: `rocm-smi --showtopo` and `amd-smi topology` say which links are there and which are
down. Put the ranks that talk most on devices with a link; move the card to another slot; ACS off,
IOMMU in pass-through.

Example: (for illustration, not measured) two MI210 without a bridge: 12 GB/s each way, where the
host reaches each with 25.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.system import CopyRate, CopyTest

CODE = "slow-pair"
BOUND = "comms"
Rates = Mapping[tuple[str, str], CopyRate]
MIN_RATE_SHARE = 0.7
"""Share of the rate that it should have below which a copy is slow: tests of copies repeat within
some percent, and a link that is down leaves half or less (by the widths of links, by no
recording)."""


def advise(auxiliary: Auxiliary) -> list[Advice]:
    tests = () if auxiliary.system is None else auxiliary.system.copy_tests
    return [advice for test in tests for advice in _judged(test)]


def _judged(test: CopyTest) -> Iterator[Advice]:
    rates: Rates = {(copy.source, copy.target): copy for copy in test.copies}
    through = list(_through_the_host(rates))
    if through:
        yield _advice(
            f"{len(through)} pair(s) of devices reach each other no faster than the host does.",
            "rocm-smi --showtopo says which links there are; keep the ranks that talk most on "
            "devices with one; ACS off in the BIOS, IOMMU in pass-through",
            through,
            test,
        )
    uneven = list(_one_way(rates))
    if uneven:
        yield _advice(
            f"{len(uneven)} pair(s) of devices are slower one way than the other.",
            "amd-smi topology and the kernel's log (dmesg) say which link is down or was trained "
            "at a lower rate",
            uneven,
            test,
        )
    slow = list(_slow_from_host(test))
    if slow:
        yield _advice(
            f"The host reaches {len(slow)} device(s) more slowly than the others.",
            "lspci -vv shows the width and speed of its slot (LnkSta); another slot; the process "
            "on the device's own socket (numactl)",
            slow,
            test,
        )


def _through_the_host(rates: Rates) -> Iterator[tuple[CopyRate, float]]:
    """A copy between devices in which the bytes cross the host's bus."""
    for copy in rates.values():
        from_host = [
            other.bytes_per_s
            for other in rates.values()
            if other.is_from_host and other.target == copy.target
        ]
        if copy.is_between_devices and from_host and copy.bytes_per_s <= max(from_host):
            yield copy, max(from_host)


def _one_way(rates: Rates) -> Iterator[tuple[CopyRate, float]]:
    for copy in rates.values():
        back = rates.get((copy.target, copy.source))
        if back is None or not copy.is_between_devices:
            continue
        if copy.bytes_per_s < MIN_RATE_SHARE * back.bytes_per_s:
            yield copy, back.bytes_per_s


def _slow_from_host(test: CopyTest) -> Iterator[tuple[CopyRate, float]]:
    """Against the fastest device, by the nearest of the host's sockets."""
    best: dict[str, CopyRate] = {}
    for copy in test.copies:
        known = best.get(copy.target)
        if copy.is_from_host and (known is None or copy.bytes_per_s > known.bytes_per_s):
            best[copy.target] = copy
    most = max((copy.bytes_per_s for copy in best.values()), default=0.0)
    for copy in best.values():
        if copy.bytes_per_s < MIN_RATE_SHARE * most:
            yield copy, most


def _advice(
    summary: str, action: str, pairs: list[tuple[CopyRate, float]], test: CopyTest
) -> Advice:
    lines = [
        f"{test.path}: {copy.source} to {copy.target}: {copy.bytes_per_s / 1e9:.1f} GB/s, "
        f"against {other / 1e9:.1f}"
        for copy, other in sorted(pairs, key=lambda pair: pair[0].bytes_per_s)
    ]
    return Advice(code=CODE, bound=BOUND, summary=summary, action=action, evidence=tuple(lines[:8]))


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
