"""The helper by which tests ask for words instead of sentences."""

from __future__ import annotations

import pytest

from tests.wording import any_mentions, mentions

WRAPPED = "The log was\n  cut at 13.5 ms: rank 3 of 8,192 (--min-steps=2) dropped 40%."


@pytest.mark.parametrize(
    "words",
    [
        ("log",),
        ("THE LOG was cut",),
        ("rank 3", "13.5 ms"),
        ("40%", "--min-steps", "drop"),
        ("8,192", "2", "steps"),
    ],
)
def test_words_in_any_order_case_and_wrapping_are_found(words: tuple[str, ...]) -> None:
    assert mentions(WRAPPED, *words)


@pytest.mark.parametrize(
    "word", ["13", "5", "8", "192", "0%", "op", "ank 3", "logs", "rank 30", "--min", "-steps"]
)
def test_parts_of_figures_and_of_words_are_not_found(word: str) -> None:
    assert not mentions(WRAPPED, word)


def test_one_missing_word_is_enough() -> None:
    assert not mentions(WRAPPED, "log", "rank 3", "absent")


@pytest.mark.parametrize("words", [(), ("",), (" ",)])
def test_asking_for_nothing_is_a_mistake(words: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        mentions(WRAPPED, *words)


def test_one_of_the_texts_has_all_of_the_words() -> None:
    assert any_mentions(["rank 3", "rank 4 is late"], "rank 4", "late")
    assert not any_mentions(["rank 3", "rank 4 is late"], "rank 3", "late")
    assert not any_mentions([], "late")
