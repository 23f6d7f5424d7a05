"""What a message must mention, however its sentence is worded.

A sentence is pinned once, in its renderer's test or golden file. Every other test asks for what
matters: the figure, the name, the path, the option, one key word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def mentions(text: object, *words: str) -> bool:
    """Whether `text` has each of the words, in any order, case and wrapping.

    A word may be the stem of a longer one ("drop" of "dropped"), never its middle ("no" of
    "unknown"); a figure is a whole one ("3" is neither in "13" nor in "3.5"), and an option is too.
    """
    assert words, "no word is asked for"
    folded = _folded(str(text))
    return all(_pattern(word).search(folded) for word in words)


def any_mentions(texts: Iterable[object], *words: str) -> bool:
    """Whether one of the texts (notes, say) has all of the words by itself."""
    return any(mentions(text, *words) for text in texts)


def _folded(text: str) -> str:
    """One space for each run of whitespace: output wraps."""
    return " ".join(text.split()).casefold()


def _pattern(word: str) -> re.Pattern[str]:
    """Match the word from its beginning; to its end too where that is a digit."""
    assert word.strip(), "an empty word is in every text"
    folded = _folded(word)
    before = r"(?<!\w)(?<!\d[.,])" if folded[0].isdigit() else ""
    if folded[0].isalpha():
        before = r"(?<![^\W_])"
    after = r"(?![.,]?\d)" if folded[-1].isdigit() else ""
    if re.fullmatch(r"--?\w[\w-]*", folded):
        before, after = r"(?<![\w-])", r"(?![\w-])"
    return re.compile(before + re.escape(folded) + after)
