"""Counters of network ports as perfquery, ibstat, ethtool, sysfs and sar print them. All samples
are formed by hand, line by line as these tools print them; the figures are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.system import PortSeries, SystemReport
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.network import counters, link_errors, network_congestion
from stepscope.recordings.network.counters import time_in
from tests.recording_texts import texts_of
from tests.wording import mentions

PERFQUERY = """\
# Port extended counters: Lid 12 port 1 (CapMask: 0x5A00)
PortSelect:......................1
CounterSelect:...................0x0000
PortXmitData:....................{data}
PortRcvData:.....................{data}
PortXmitWait:....................{wait}
SymbolErrorCounter:..............{symbols}
LinkErrorRecoveryCounter:........0
LinkDownedCounter:...............{downed}
PortRcvErrors:...................0
"""
IBSTAT = """\
CA 'mlx5_{card}'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: {state}
\t\tPhysical state: LinkUp
\t\tRate: {rate}
\t\tBase lid: 12
\t\tLink layer: InfiniBand
"""
ETHTOOL = """\
$ ethtool -S eth0
NIC statistics:
     rx_packets: 845320277
     rx_bytes: {data}
     tx_bytes: {data}
     rx_out_of_buffer: {dropped}
     rx_prio3_pause_duration: {paused}
     rx_prio4_pause_duration: 0
     rx_discards_phy: 0
     link_down_events_phy: 2
"""
SAR = """\
Linux 6.8.0 (host) \t11/17/2026 \t_x86_64_\t(96 CPU)

23:59:40        IFACE   rxpck/s   txpck/s    rxkB/s    txkB/s   rxcmp/s   txcmp/s  rxmcst/s   %ifutil
23:59:50           lo      1.00      1.00      0.10      0.10      0.00      0.00      0.00      0.00
23:59:50         eth0  81234.00  90000.00 120000.00 240000.00      0.00      0.00      0.00     19.66

23:59:50        IFACE   rxpck/s   txpck/s    rxkB/s    txkB/s   rxcmp/s   txcmp/s  rxmcst/s   %ifutil
00:00:00         eth0  81234.00  90000.00 100000.00 200000.00      0.00      0.00      0.00     19.66
00:00:10         eth0  81234.00  90000.00 300000.00 400000.00      0.00      0.00      0.00     19.66
Average:        eth0  81234.00  90000.00 300000.00 400000.00      0.00      0.00      0.00     19.66
"""  # noqa: E501


def perfquery(*samples: tuple[int, int, int, int], every_s: int = 10) -> str:
    """Data, waits, symbol errors and times down, one after the other."""
    return "".join(
        f"{1_790_000_000 + at * every_s}\n"
        + PERFQUERY.format(data=data, wait=wait, symbols=symbols, downed=downed)
        for at, (data, wait, symbols, downed) in enumerate(samples)
    )


def sysfs(port: str, at: int, **counts: int) -> str:
    lines = [
        f"/sys/class/infiniband/{port}/ports/1/{'hw_' if name[:3] in ('np_', 'rp_') else ''}"
        f"counters/{name}:{value}\n"
        for name, value in counts.items()
    ]
    return f"{1_790_000_000 + at}\n" + "".join(lines)


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "port-counters", "ib.txt", perfquery((0, 0, 0, 0), (9, 9, 9, 1)).encode()
    yield "port-counters", "ibstat.txt", IBSTAT.format(card=0, state="Active", rate=400).encode()
    yield "port-counters", "ethtool.txt", ETHTOOL.format(data=5, dropped=7, paused=9).encode()
    yield "port-counters", "sysfs.txt", sysfs("mlx5_0", 0, port_xmit_wait=4).encode()
    yield "port-counters", "sar.txt", SAR.encode()


def read(folder: Path, text: str, name: str = "ports.txt") -> SystemReport:
    path = folder / name
    path.write_text(text)
    assert counters.is_mine(text.encode(), name)
    return SystemReport(recordings=(counters.read_file(Source(path=path, label=str(path))),))


def port_of(folder: Path, text: str) -> PortSeries:
    (port,) = read(folder, text).ports
    return port


def summaries(report: SystemReport) -> dict[str, str]:
    auxiliary = Auxiliary(system=report)
    advice = [*link_errors.advise(auxiliary), network_congestion.advise(auxiliary)]
    return {each.code: each.summary for each in advice if each is not None}


def test_perfquery_over_time_has_rates_and_their_moment(tmp_path: Path) -> None:
    text = perfquery((0, 0, 5, 1), (250, 100, 5, 1), (500, 4100, 5, 1), (750, 4200, 5, 1))
    port = port_of(tmp_path, text)

    assert (port.name, port.num_samples, port.span_s) == ("lid 12/1", 4, 30)
    wait = port.counters["xmit_wait"]
    assert (wait.growth, wait.per_s, wait.num_grew) == (4200, 140, 3)
    assert (wait.most_per_s, wait.most_at_s) == (400, 20)
    assert port.per_s("tx_bytes") == 100, "InfiniBand counts words of four bytes"
    assert port.growth("symbol_errors") == 0
    assert port.counters["link_downed"].last == 1
    assert summaries(read(tmp_path, text)) == {}, "what it counted before is not of this job"


def test_a_link_that_went_down_and_symbol_errors_are_faults(tmp_path: Path) -> None:
    down = perfquery((0, 0, 0, 1), (9, 0, 0, 1), (9, 0, 0, 2), (9, 0, 0, 3), (9, 0, 0, 3))
    said = summaries(read(tmp_path, down))
    assert mentions(said["link-errors"], "went down 2 times", "40 s")

    errors = perfquery((0, 0, 0, 0), (9, 0, 600, 0))
    said = summaries(read(tmp_path, errors))
    assert mentions(said["link-errors"], "60 symbol errors", "0.1")

    few = perfquery((0, 0, 0, 0), (9, 0, 1, 0), every_s=3600)
    assert summaries(read(tmp_path, few)) == {}, "one an hour is within the specified error rate"


def test_one_sample_is_not_judged(tmp_path: Path) -> None:
    report = read(tmp_path, perfquery((9, 9, 9_000_000, 50)))

    assert summaries(report) == {}
    assert mentions(report.recordings[0].notes[0], "nothing is judged")


def test_a_counter_that_began_anew_has_no_growth(tmp_path: Path) -> None:
    port = port_of(tmp_path, perfquery((9, 9, 900, 5), (9, 9, 3, 0), (9, 9, 4, 0)))

    assert port.counters["symbol_errors"].growth is None
    assert summaries(read(tmp_path, perfquery((9, 9, 900, 5), (9, 9, 3, 0)))) == {}


def test_ports_that_came_up_slow_or_not_at_all(tmp_path: Path) -> None:
    rates = (400, 400, 200, 400)
    text = "".join(IBSTAT.format(card=at, state="Active", rate=r) for at, r in enumerate(rates))
    said = summaries(read(tmp_path, text))
    assert mentions(said["link-errors"], "mlx5_2/1", "200 Gb/s")

    text = text.replace("200", "400") + IBSTAT.format(card=4, state="Down", rate=400)
    said = summaries(read(tmp_path, text))
    assert mentions(said["link-errors"], "mlx5_4/1 is at fault", "Down")
    even = "".join(IBSTAT.format(card=at, state="Active", rate=400) for at in range(4))
    assert summaries(read(tmp_path, even)) == {}


def test_pause_frames_are_a_share_of_the_time(tmp_path: Path) -> None:
    times = ("2026-11-17T18:00:00", "2026-11-17T18:00:10")
    text = "".join(
        f"{time}\n" + ETHTOOL.format(data=at * 10**9, dropped=0, paused=at * 2_000_000)
        for at, time in enumerate(times)
    )
    report = read(tmp_path, text)

    assert [port.name for port in report.ports] == ["eth0"]
    assert report.ports[0].per_s("pause_us") == 200_000
    said = summaries(report)
    assert mentions(said["network-congestion"], "eth0", "pause 20%")
    assert "link-errors" not in said, "twice down, before the recording"


def test_notifications_and_drops_are_congestion_with_its_moment(tmp_path: Path) -> None:
    text = "".join(
        sysfs("mlx5_3", at * 10, rp_cnp_handled=value, out_of_buffer=at)
        for at, value in enumerate((0, 0, 900_000, 900_010, 900_020))
    )
    said = summaries(read(tmp_path, text))
    assert mentions(said["network-congestion"], "22,500 notifications", "20 s")

    even = "".join(sysfs("mlx5_3", at * 10, rp_cnp_handled=at * 4000) for at in range(5))
    words = summaries(read(tmp_path, even))["network-congestion"]
    assert mentions(words, "400 notifications", "all the time")

    quiet = "".join(sysfs("mlx5_3", at * 10, rp_cnp_handled=at * 50) for at in range(5))
    assert summaries(read(tmp_path, quiet)) == {}


def test_waits_are_judged_against_the_peers_alone(tmp_path: Path) -> None:
    def text(last: int) -> str:
        return "".join(
            sysfs(f"mlx5_{card}", at * 10, port_xmit_wait=at * (last if card == 3 else 10**8))
            for at in range(3)
            for card in range(4)
        )

    said = summaries(read(tmp_path, text(4 * 10**9)))
    assert mentions(said["network-congestion"], "mlx5_3/1", "waits")
    assert "40 times its peers'" in said["network-congestion"]
    assert summaries(read(tmp_path, text(2 * 10**8))) == {}


def test_sar_rates_add_up_over_midnight(tmp_path: Path) -> None:
    port = port_of(tmp_path, SAR)

    assert (port.name, port.num_samples, port.span_s) == ("eth0", 3, 20)
    assert port.per_s("rx_bytes") == pytest.approx(200_000 * 1024)
    assert port.counters["rx_bytes"].most_at_s == 20


@pytest.mark.parametrize(
    "line", ["1790000000", "=== 1790000000 ===", "Sun Sep 20 12:53:20 UTC 2026"]
)
def test_lines_that_are_times(line: str) -> None:
    assert time_in(line) == pytest.approx(1_790_000_000, abs=86_400 * 9)


@pytest.mark.parametrize("line", ["", "17900", "step 1790000000 of it", "PortXmitWait:....17900"])
def test_lines_that_are_none(line: str) -> None:
    assert time_in(line) is None


def test_a_head_without_a_counter_is_said(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no counter"):
        read(tmp_path, "NIC statistics:\n     nothing_known: 5\n")


def test_the_report_shows_what_grew(tmp_path: Path) -> None:
    (text,) = texts_of(read(tmp_path, perfquery((0, 0, 0, 0), (250, 100, 0, 1))))

    assert dict(text.pairs)["lid 12/1"] == "1e-07 GB/s in, 1e-07 GB/s out"
    assert [row[1] for row in text.tables[0].rows] == ["xmit_wait", "link_downed"]
