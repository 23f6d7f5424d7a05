"""One document in the terminal, as Markdown and as HTML: the same words, and nothing that a reader
obeys."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.blocks import (
    Action,
    Bar,
    Card,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Facts,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    Warn,
    numbers,
)
from stepscope.report.document.html import to_html
from stepscope.report.document.markdown import MAX_CHARS, to_markdown
from stepscope.report.document.terminal import num_lines, to_text
from stepscope.report.words import clean
from tests.report.test_markdown import HOSTILE, SHOUTS, drawn
from tests.scenarios import SCENARIOS


def every_block(text: str) -> Document:
    """A document with this text wherever one may stand."""
    table = Table(
        caption=text,
        columns=(
            Column(title=text, fit="shorten"),
            Column(fit="wrap"),
            *numbers("n"),
            Column(title=text),
        ),
        rows=(
            (text, text, "1.0", Bar(0.5)),
            (Cell(text, "strong"), Cell(text, note=text), "2.0", Bar(1.0)),
        ),
    )
    blocks = (
        Prose(text),
        Prose(text, "quiet"),
        Prose(text, "strong"),
        Items((text,)),
        Facts(((text, text), ("", text))),
    )
    card = Card(
        number=1, code=text, title=text, blocks=(Action(text), Details(title=text, lines=(text,)))
    )
    return (
        Warn(text),
        Headline(text=text, about=(text,)),
        *blocks,
        Section(title=text, aside=text, blocks=(*blocks, table, card, Code((text,)))),
        Section(title=text, aside=text, blocks=(*blocks, table), is_folded=True),
    )


class Tags(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[object] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text_in_every_rendering(text: str) -> None:
    document, tame = every_block(text), every_block("tame")
    shown = " ".join(clean(text).split())
    page, calm = Tags(to_html(document)), Tags(to_html(tame))
    assert page.tags == calm.tags
    words = " ".join("".join(page.text).split())
    assert words.count(shown) >= "".join(calm.text).count("tame")
    comment = drawn(to_markdown(document))
    assert comment.tags == drawn(to_markdown(tame)).tags
    assert not SHOUTS.search(comment.words)
    plain = to_text(document)
    assert all(line.isprintable() for line in plain.splitlines())
    assert max(map(cell_len, plain.splitlines())) <= 80


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(40, 100))
@example("\u00a0", 40)
def test_any_text_fits_any_width(text: str, width: int) -> None:
    drawn = to_text(every_block(text), width=width)
    assert num_lines(every_block(text), width=width) == drawn.count("\n")
    lines = drawn.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert all(line == line.rstrip() and line.isprintable() for line in lines)


def test_a_table_gives_way_in_its_names_and_never_in_its_numbers() -> None:
    row = (
        "a_kernel_" * 12,
        "1 234.5",
        Bar(0.25),
        Cell("layout", note="because of " + "much " * 20),
    )
    columns = (Column(title="name", fit="shorten"), *numbers("ms"), Column(), Column(title="how"))
    for width in (40, 60, 80, 100):
        text = to_text(
            (Section(title="T", blocks=(Table(columns=columns, rows=(row,)),)),), width=width
        )
        assert "1 234.5" in text
        assert "a_k" in text
        assert max(map(len, text.splitlines())) <= width
    assert "#" in text


def test_blocks_that_hold_nothing_draw_nothing() -> None:
    empty = (
        Prose(""),
        Items(()),
        Facts(()),
        Code(()),
        Table(columns=(Column(),), rows=()),
        Details(title="t", lines=()),
    )
    document = (Headline(text="All is well."), *empty, Section(title="T", blocks=empty))
    assert to_text(document).split() == ["All", "is", "well.", "T"]
    assert drawn(to_markdown(document)).words.split() == ["stepscope:", "All", "is", "well.", "T"]
    assert "".join(Tags(to_html(document)).text).split() == ["All", "is", "well.", "T"]


def test_units_stay_with_their_numbers() -> None:
    words = "x" * 74 + " 46.3\u00a0ms and so on"
    assert to_text((Prose(words),)).splitlines() == ["x" * 74, "46.3 ms and so on"]


def test_a_comment_that_is_too_long_keeps_its_headlines() -> None:
    long = Section(title="T", blocks=(Items(("<|>" * 300,) * 200),))
    text = to_markdown((Headline(text="first"), long, Headline(text="second"), long))
    assert len(text) <= MAX_CHARS
    assert text.count("## stepscope: ") == 2
    assert "left out" in text


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_diagnosis_is_the_same_in_every_rendering(name: str) -> None:
    document = diagnosis_document(SCENARIOS[name]())
    titles = [block.title for block in document if isinstance(block, Section)]
    comment, page, plain = (
        drawn(to_markdown(document)).words,
        "".join(Tags(to_html(document)).text),
        to_text(document),
    )
    for title in titles:
        assert title in comment
        assert title in page
        assert title in plain
