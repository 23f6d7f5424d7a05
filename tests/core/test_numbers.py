"""core.numbers: numbers as words."""

import pytest

from stepscope.core.numbers import ordinal


@pytest.mark.parametrize(
    ("number", "word"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (13, "13th"),
     (20, "20th"), (21, "21st"), (33, "33rd"), (111, "111th"), (122, "122nd")],
)  # fmt: skip
def test_ordinal_ends_as_it_is_spoken(number: int, word: str) -> None:
    assert ordinal(number) == word
