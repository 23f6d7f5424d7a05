"""A comparison in every format: hostile names stay text, what is hidden is in the rest, and no more is told than was measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from stepscope.core.comparison import Changed, Comparison, Knob, Speedup, Work
from stepscope.experiments.compare import compare
from stepscope.experiments.compare_side import CompareSide
from stepscope.report.comparison_html import comparisons_html
from stepscope.report.comparison_json import comparisons_json
from stepscope.report.comparison_markdown import comparisons_markdown
from stepscope.report.comparison_page import chosen, page_of
from stepscope.report.comparison_view import render_comparisons, show_comparisons
from stepscope.report.comparison_words import headline, interval_words, ratio
from stepscope.report.markdown import MAX_CHARS
from tests.experiments.test_pairing import Call, pieces

EVIL = "</script><img src=x onerror=alert(1)>\x1b[31m|`_*\u202e@someone {{7*7}}"


def made(before: list[Call], after: list[Call], name: str = "run", steps: tuple[float, float] = (20.0, 10.0)) -> Comparison:
    sides = [
        CompareSide(
            label=f"{name}-{letter}",
            kind="run",
            step_ns=ms * 1e6,
            step_source="measured",
            unprofiled=tuple(round(ms * 1e6) + 1000 * (i % 5) for i in range(40)),
            pieces=pieces(calls),
            knobs={"loader.num_workers": "0" if letter == "a" else EVIL},
        )
        for letter, calls, ms in (("a", before, steps[0]), ("b", after, steps[1]))
    ]
    return compare(*sides)


@pytest.fixture
def evil() -> Comparison:
    return made([(f"forward {EVIL}", EVIL, 9e6)], [(f"forward {EVIL}x", f"{EVIL}y", 4e6)], name=EVIL)


def test_names_of_a_strangers_making_are_text_everywhere(evil: Comparison) -> None:
    page = comparisons_html([evil])
    assert "<img" not in page
    assert "onerror=alert(1)&gt;" in page
    assert page.count("</script") == 3
    assert "\x1b" not in page + render_comparisons([evil]) + comparisons_markdown([evil])
    assert "\u202e" not in page + render_comparisons([evil]) + comparisons_markdown([evil])
    comment = comparisons_markdown([evil])
    assert "<img" not in comment
    assert "`_*" not in comment
    for line in comment.splitlines():
        if line.startswith("| "):
            assert not re.search(r"(?<!\\)\|[^ |-]", line[1:]), line
    assert json.loads(comparisons_json([evil]))["knobs"][0]["after"] == EVIL


def test_only_our_own_scripts_may_run(evil: Comparison) -> None:
    page = comparisons_html([evil])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]
    assert " style=" not in page


def test_lines_that_are_hidden_are_in_the_rest() -> None:
    before = [(f"forward aten::op{i}[{i}]", f"k{i}", 1e6 * (i + 1)) for i in range(30)]
    found = made(before, [])
    table = next(table for table in page_of(found, "B").tables if table.name == "changed")
    shown, left_out = chosen(table)
    assert left_out == 30 - table.most
    total = next(line for line in shown if line.is_total)
    others = [line for line in shown if not line.is_total]
    for side in (0, 1):
        assert sum(line.ends_ns[side] for line in others if line.ends_ns) == (total.ends_ns or (0, 0))[side]
    assert total.ends_ns == (sum(range(1, 31)) * 10**6, 0)
    text = render_comparisons([found])
    assert "and 18 lines more" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())


def words_of(low: float | None, high: float | None, verdict: str, value: float | None = 1.2) -> str:
    told = made([], [])
    smallest = None if low is None else 1.01
    speedup = Speedup(value=value, low=low, high=high, level=0.95, smallest=smallest, verdict=verdict, why="two steps")
    return headline(replace(told, speedup=speedup), "B").replace("\u00a0", " ")


def test_the_headline_says_no_more_than_is_known() -> None:
    assert words_of(1.1, 1.3, "faster") == "B is 1.20x (1.10x to 1.30x) as fast as A: a step takes 10.0 ms instead of 20.0 ms."
    assert words_of(0.7, 0.9, "slower", 0.8).startswith("B is slower than A, 0.80x (0.70x to 0.90x) as fast")
    assert words_of(0.9, 1.3, "no difference seen").startswith("No difference seen between A and B")
    assert words_of(None, None, "not told").startswith("B seems 1.20x as fast as A")
    assert words_of(None, None, "not told", None) == "The steps of A and B cannot be compared: two steps."


def test_ratios_keep_the_digits_that_matter() -> None:
    assert [ratio(value) for value in (0.00214, 1.0031, 0.98, 1.08, 2.076, 12.34, 288.2)] == [
        "0.0021x", "1.003x", "0.980x", "1.08x", "2.08x", "12.3x", "288x"
    ]  # fmt: skip
    assert interval_words(Speedup(value=None, low=None, high=None, level=0.95, smallest=None, verdict="not told", why="")) == (
        "not measured"
    )


def test_work_that_is_not_the_same_is_said_first_and_loudly() -> None:
    found = replace(made([], []), unequal=("batch size: 8 -> 16",))
    for text in (render_comparisons([found]), comparisons_markdown([found]), comparisons_html([found])):
        assert "do not do the same work: batch size: 8 -" in " ".join(text.split())
    assert render_comparisons([found]).startswith("A and B do not do the same work")


def test_three_runs_have_letters_and_ids_of_their_own() -> None:
    found = made([("forward aten::mm[1]", "k", 5e6)], [("forward aten::mm[1]", "k", 2e6)])
    page = comparisons_html([found, found])
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "C against A" in page
    assert "C is 2.00x" in render_comparisons([found, found])


def test_a_comment_stays_under_what_github_takes() -> None:
    long = Work(ops=tuple(f"{i}{'x' * 400}" for i in range(8)), kernels=(), shapes=(), precisions=(), count=1.0, ns=1000)
    entry = Changed(name="x", phase=None, module=None, how=("replaced",), paired_by="place", before=long, after=long)
    found = made([], [])
    assert found.device is not None
    knobs = tuple(Knob(name=f"environment.{'N' * 80}{i}", before="a" * 200, after="b" * 200) for i in range(200))
    found = replace(found, device=replace(found.device, changed=(entry,) * 40), knobs=knobs)
    assert len(comparisons_markdown([found])) <= MAX_CHARS
    many = comparisons_markdown([found] * 10)
    assert len(many) <= MAX_CHARS
    assert "and 2 more runs" in many


def test_a_terminal_without_utf8_gets_ascii() -> None:
    found = made([("forward aten::m\u00fcl[1]", "k", 5e6)], [])
    console = Console(width=80, force_terminal=False, file=open("/dev/null", "w", encoding="ascii"))  # noqa: SIM115
    with console.capture() as captured:
        show_comparisons([found], console)
    assert captured.get().isascii()
    console.file.close()
