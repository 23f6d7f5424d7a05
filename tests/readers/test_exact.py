"""Exact nanoseconds."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.trace.categories import LIMIT_NS, ns_from_double, ns_from_text, ns_from_texts
from tests.builders import event, read, trace_text
from tests.wording import any_mentions

microseconds = st.integers(0, 2**42)
decimals = st.text("0123456789", max_size=3)


def _nearest(value: Fraction) -> int:
    return round(value)


@given(microseconds, decimals)
def test_doubles_are_exact_to_three_decimals(whole: int, digits: str) -> None:
    text = f"{whole}.{digits}" if digits else str(whole)
    assert ns_from_double(np.array([float(text)]))[0] == Fraction(text) * 1000


@given(st.integers(-(10**15), 10**15), st.text("0123456789", max_size=12), st.integers(-6, 3))
def test_text_is_exact_with_any_decimals_and_exponent(
    whole: int, digits: str, exponent: int
) -> None:
    text = f"{whole}.{digits or '0'}e{exponent}"
    expected = _nearest(Fraction(text) * 1000)
    assert ns_from_text(text) == (expected if abs(expected) < LIMIT_NS else None)
    assert ns_from_text(f' "{text}" ') == ns_from_text(text)


@given(st.lists(st.tuples(st.integers(0, 4 * 10**15 - 1), st.integers(0, 999)), min_size=1))
def test_texts_convert_alike_at_once_and_one_by_one(times: list[tuple[int, int]]) -> None:
    for texts in (
        [f"{us}.{ns:03}" for us, ns in times],
        [str(us) for us, _ in times],
        [f"{us}.{ns:03}e0" for us, ns in times],
    ):
        values, unread = ns_from_texts([text.encode() for text in texts])
        assert values.tolist() == [ns_from_text(text) for text in texts]
        assert not unread.any()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        "Infinity",
        "-Infinity",
        "1_000",
        "0x10",
        "1e400",
        "9e18",
        "1" * 65,
        "none",
        "--1",
        "1e",
        "\u0661",
    ],
)
def test_text_that_is_no_time_gives_none(text: str) -> None:
    assert ns_from_text(text) is None


@pytest.mark.parametrize(
    ("written", "start_ns"),
    [
        ("5", 5_000),
        ("5.5", 5_500),
        ("1.5e3", 1_500_000),
        ("-0", 0),
        ("-2.5", -2_500),
        ("1E-3", 1),
        ("1695835535123456.789", 1_695_835_535_123_456_789),
        ("1695835535123456", 1_695_835_535_123_456_000),
        ('"1695835535123456.789"', 1_695_835_535_123_456_789),
        ("8796093022208.001", 8_796_093_022_208_001),
        ("3850783471607.341", 3_850_783_471_607_341),
        ("1e-999999999", 0),
    ],
)
def test_a_trace_keeps_every_nanosecond(tmp_path: Path, written: str, start_ns: int) -> None:
    text = trace_text([event(ts=12345)]).replace("12345", written)
    assert read(tmp_path / "t.json", text).start_ns.tolist() == [start_ns]


@pytest.mark.parametrize(
    "written",
    [
        "1e400",
        "9e18",
        "NaN",
        "null",
        '"soon"',
        "[1]",
        "99999999999999999999999999",
        "1e99999999999",
    ],
)
def test_an_event_without_a_readable_time_is_left_out_and_told(
    tmp_path: Path, written: str
) -> None:
    text = trace_text([event(ts=12345), event(ts=7)]).replace("12345", written)
    trace = read(tmp_path / "t.json", text)
    assert trace.start_ns.tolist() == [7_000]
    assert any_mentions(trace.notes, "1 event", "without", "time", "left out")


def test_a_duration_beyond_reason_counts_as_none(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "t.json",
        trace_text([event(dur=10**17), event(ts=3, dur=None), event(ts=4, dur=-5)]),
    )
    assert trace.dur_ns.tolist() == [0, 0, 0]
    assert any_mentions(trace.notes, "2 event", "without", "duration", "as 0")
    assert any_mentions(trace.notes, "1 event", "negative duration", "as 0")


@pytest.mark.parametrize(
    "written", ["1790857026000000000", "1.790857026e18", '"1790857026000000000"']
)
def test_the_base_time_is_exact_however_it_is_written(tmp_path: Path, written: str) -> None:
    text = trace_text([event()], header={"baseTimeNanoseconds": 42}).replace("42", written)
    assert read(tmp_path / "t.json", text).meta.base_ns == 1_790_857_026_000_000_000
