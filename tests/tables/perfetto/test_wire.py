"""The encoding, against values worked out by hand and a reader of the tests' own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.tables.perfetto.wire import (
    data,
    fixed,
    inside,
    interleaved,
    number,
    numbers,
    real,
    reals,
    rows_of,
    text,
    varint,
)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (1 << 63, "80" * 9 + "01")],
)
def test_a_number_is_written_seven_bits_a_byte(value: int, wanted: str) -> None:
    assert varint(value).hex() == wanted


def test_fields_are_what_the_encoding_guide_shows() -> None:
    assert number(1, 150).hex() == "089601"
    assert text(2, "testing").hex() == "120774657374696e67"
    assert data(3, number(1, 150)).hex() == "1a03089601"
    assert number(1, -2).hex() == "08fe" + "ff" * 8 + "01"
    assert real(1, 1.0).hex() == "09000000000000f03f"


def decoded(raw: bytes) -> int:
    return sum((byte & 127) << (7 * at) for at, byte in enumerate(raw))


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_columns_of_numbers_hold_every_value_in_one_width(values: list[int]) -> None:
    rows = rows_of(numbers(5, np.array(values, np.int64)), len(values))
    assert [row[0] for row in rows] == [5 << 3] * len(values)
    for row, value in zip(rows[:, 1:], values, strict=True):
        raw = row.tobytes()
        assert decoded(raw) == value
        assert all(byte >= 128 for byte in raw[:-1])
        assert raw[-1] < 128


def test_messages_of_several_layouts_come_out_in_order() -> None:
    small = rows_of(inside(1, [*numbers(2, np.array([1, 3]))]), 2)
    large = rows_of(inside(1, [*fixed(3, np.array([2])), *reals(4, np.array([0.5]))]), 1)
    out = interleaved([(np.array([0, 2]), small), (np.array([1]), large)], 3)
    assert out == data(1, number(2, 1)) + large.tobytes() + data(1, number(2, 3))
    assert large.tobytes() == bytes.fromhex(
        "0a12" + "19" + "0200000000000000" + "21" + "000000000000e03f"
    )
