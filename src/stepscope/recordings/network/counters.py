"""What perfquery, ibstat, ethtool -S, sar -n DEV and the files of /sys/class/infiniband show of
network ports, once or many times over.

    # Port extended counters: Lid 12 port 1 (CapMask: 0x5A00)
    PortXmitWait:....................184467

    /sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error:0

    NIC statistics:
         rx_prio3_pause_duration: 1200

A sample begins at a line with a time (`date +%s`, `date`, ISO 8601), or where a port's counter
comes a second time. Without times there are no rates.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

from stepscope.api import FormatError, Reader, Source, SystemRecording, TextLines
from stepscope.protocol.port_counters import PAUSE_US, RX, TX, counter_of
from stepscope.protocol.untrusted import finite_text, whole_text
from stepscope.readers.run_folder.port_samples import PortSamples

FORMAT = "port-counters"
MAX_LINES = 4_000_000
MAX_LINE_BYTES = 4096
SYSFS = re.compile(
    r"^(?:\S{0,200}/)?infiniband/([\w.-]{1,64})/ports/(\d{1,4})/(?:hw_)?counters/(\w{1,80})[:\s]\s*(\d{1,20})\s*$"
)
PERFQUERY = re.compile(
    r"^#\s*Port (?:extended )?counters: (?:Lid (\w{1,10}) port (\d{1,4})|.{0,80})"
)
DOTTED = re.compile(r"^([A-Za-z]\w{1,60}):\.{2,60}(\S{1,40})\s*$")
NIC = re.compile(r"^NIC statistics(?: for (\S{1,64}))?:\s*$")
NAMED = re.compile(r"ethtool\s+-S\s+([\w.@:-]{1,64})")
INDENTED = re.compile(r"^\s{2,20}([\w\[\]. -]{1,80}?):\s{0,20}(\d{1,20})\s*$")
CARD = re.compile(r"^\s{0,8}CA '([\w.-]{1,64})'")
CARD_PORT = re.compile(r"^\s{1,20}Port (\d{1,4}):\s*$")
CARD_LINE = re.compile(r"^\s{1,20}(State|Physical state|Rate|Link layer):\s{0,8}(.{1,80}?)\s*$")
SAR = re.compile(r"^(\d\d:\d\d:\d\d)(?: ([AP]M))?\s{1,20}IFACE\s{1,20}(.{1,400})$")
SAR_ROW = re.compile(r"^(\d\d:\d\d:\d\d)(?: ([AP]M))?\s{1,20}(\S{1,64})\s{1,20}([\d.,\s-]{1,400})$")
EPOCH = re.compile(r"^[#=\s]{0,8}(?:time\s*[:=]?\s*)?(1\d{9})(\.\d{1,9})?\s*[=#]{0,8}\s*$")
ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)")
DATE = re.compile(
    r"^\w{3} (\w{3}) ([ \d]\d) (\d\d:\d\d:\d\d)(?: [AP]M)? (?:[A-Z]{2,5} )?(\d{4})\s*$"
)
PAUSE = re.compile(r"^rx_prio\d_pause_duration$")
HEAD = re.compile(
    rb"^#\s*Port (?:extended )?counters: |infiniband/[\w.-]{1,64}/ports/\d{1,4}/(?:hw_)?counters/"
    rb"|^NIC statistics(?: for \S{1,64})?:\s*$|^CA '[\w.-]{1,64}'\s*$"
    rb"|^\d\d:\d\d:\d\d(?: [AP]M)?\s{1,20}IFACE\s{1,20}rx",
    re.MULTILINE,
)
DAY_S = 86_400
RECORD = "Record it anew: while sleep 10; do date +%s; perfquery -x; done > ports.txt"
SAR_BYTES = {"rxkB/s": RX, "txkB/s": TX}
SAR_ERRORS = {"rxerr/s": "rcv_errors", "rxdrop/s": "rcv_discards", "txdrop/s": "xmit_discards"}


def is_mine(head: bytes, _name: str) -> bool:
    return HEAD.search(head) is not None


def read_file(source: Source) -> SystemRecording:
    lines = TextLines(source, max_line_bytes=MAX_LINE_BYTES, max_lines=MAX_LINES)
    parser = _PortParser(source.label)
    for line in lines:
        parser.take(line)
    parser.flush()
    ports = parser.samples.series()
    if not ports:
        raise FormatError(f"{source.label}: no counter of a network port in it. {RECORD}")
    notes = list(lines.notes)
    if parser.samples.num_left_out:
        notes.append(f"{source.label}: {parser.samples.num_left_out:,} samples were left out")
    if all(port.num_samples < 2 and port.counters for port in ports):
        notes.append(
            f"{source.label}: one sample of each port: its counters may be of months, and nothing "
            "is judged by them; sample twice or more, with the time"
        )
    return SystemRecording(format=FORMAT, paths=(source.label,), notes=tuple(notes), ports=ports)


class _PortParser:
    """Lines of any of these tools, one after the other."""

    def __init__(self, label: str) -> None:
        self.samples = PortSamples()
        self._time_s: float | None = None
        self._counts: dict[str, dict[str, int]] = {}
        """Counts of the sample that is being read, by port."""
        self._words: dict[str, set[str]] = {}
        self._port = label.replace("\\", "/").rsplit("/", 1)[-1].partition(".")[0] or "port"
        self._card: str | None = None
        self._columns: list[str] = []
        self._sar_s: float | None = None
        self._sar: dict[str, dict[str, float]] = {}

    def take(self, line: str) -> None:
        if match := SYSFS.match(line):
            self._count(f"{match[1]}/{match[2]}", match[3], match[4])
        elif match := DOTTED.match(line):
            self._count(self._port, match[1], match[2])
        elif match := PERFQUERY.match(line):
            self._port = f"lid {match[1]}/{match[2]}" if match[1] else self._port
        elif match := INDENTED.match(line):
            self._indented(match[1], match[2])
        elif match := NIC.match(line):
            self._port, self._card = match[1] or self._port, None
        elif match := CARD.match(line):
            self._card = match[1]
        elif match := SAR.match(line):
            self._columns = match[3].split()
        elif self._columns and (match := SAR_ROW.match(line)):
            self._sar_row(match)
        elif (time_s := time_in(line)) is not None:
            self.flush()
            self._time_s = time_s
        else:
            self._other(line)

    def _other(self, line: str) -> None:
        if match := NAMED.search(line):
            self._port = match[1]
        elif self._card is not None and (match := CARD_PORT.match(line)):
            self._port = f"{self._card}/{match[1]}"
        elif self._card is not None and (match := CARD_LINE.match(line)):
            self._described(match[1], match[2])

    def _described(self, what: str, value: str) -> None:
        """A line of ibstat."""
        port = self.samples.port(self._port)
        if port is None:
            return
        if what == "State":
            port.state = value
        elif what == "Link layer":
            port.layer = value
        elif what == "Rate" and (gbit := finite_text(value, 0, 1e5)) is not None:
            port.rate_bytes_per_s = gbit * 1e9 / 8

    def _indented(self, word: str, value: str) -> None:
        if self._card is not None:
            self._described(word, value)
        elif PAUSE.match(word.strip()):
            counts = self._sample(self._port, word)
            counts[PAUSE_US] = counts.get(PAUSE_US, 0) + int(value)
        else:
            self._count(self._port, word.strip(), value)

    def _count(self, port: str, word: str, value: str) -> None:
        known, number = counter_of(word), whole_text(value, 0)
        if known is None or number is None:
            return
        name, scale = known
        counts = self._sample(port, word)
        # Several names of one counter in a sample: the largest has the others in it.
        counts[name] = max(counts.get(name, 0), number * scale)

    def _sample(self, port: str, word: str) -> dict[str, int]:
        """The counts of a port's sample; a new one where this word has come already."""
        words = self._words.setdefault(port, set())
        if word in words:
            self._finish(port)
            words = self._words.setdefault(port, set())
        words.add(word)
        return self._counts.setdefault(port, {})

    def _finish(self, port: str) -> None:
        self._words.pop(port, None)
        self.samples.add(port, self._counts.pop(port, {}), self._time_s)

    def _sar_row(self, match: re.Match[str]) -> None:
        """Rates of one interface over one interval, added up to counters."""
        time_s = _of_day(match[1], match[2])
        if self._sar_s is not None and time_s < self._sar_s % DAY_S:
            time_s += DAY_S * (int(self._sar_s // DAY_S) + 1)
        elif self._sar_s is not None:
            time_s += DAY_S * int(self._sar_s // DAY_S)
        cells = [finite_text(cell.replace(",", "."), 0) for cell in match[4].split()]
        if match[3] == "lo" or len(cells) != len(self._columns):
            return
        sums = self._sar.setdefault(match[3], {"time": time_s})
        seconds, sums["time"] = time_s - sums["time"], time_s
        self._sar_s = time_s
        for column, rate in zip(self._columns, cells, strict=True):
            name = SAR_BYTES.get(column) or SAR_ERRORS.get(column)
            if name is not None and rate is not None:
                scale = 1024 if column in SAR_BYTES else 1
                sums[name] = sums.get(name, 0.0) + rate * scale * max(seconds, 0.0)
        counts = {name: int(value) for name, value in sums.items() if name != "time"}
        self.samples.add(match[3], counts, time_s)

    def flush(self) -> None:
        for port in list(self._counts):
            self._finish(port)


def time_in(line: str) -> float | None:
    """Seconds since 1970 of a line that is a time and little else."""
    if match := EPOCH.match(line):
        return float(match[1] + (match[2] or ""))
    if len(line) > 80:
        return None
    try:
        if match := DATE.match(line.strip()):
            text = f"{match[1]} {match[2].strip()} {match[3]} {match[4]}"
            return datetime.strptime(f"{text} +0000", "%b %d %H:%M:%S %Y %z").timestamp()
        if (match := ISO.search(line)) and match.start() <= 8:
            moment = datetime.fromisoformat(match[1].replace(" ", "T"))
            return moment.replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
    return None


def _of_day(text: str, half: str | None) -> float:
    hours, minutes, seconds = map(int, text.split(":"))
    if half is not None:
        hours = hours % 12 + (12 if half == "PM" else 0)
    return hours * 3600.0 + minutes * 60 + seconds


READER = Reader(is_mine=is_mine, read_file=read_file)
