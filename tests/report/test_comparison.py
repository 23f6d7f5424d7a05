"""A comparison in every format: hostile names stay text, what is hidden is in the rest, and no more
is told than was measured."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from stepscope.core.codec import encode
from stepscope.core.experiments.comparison import (
    Changed,
    Comparison,
    Knob,
    Speedup,
    Work,
    as_document,
)
from stepscope.experiments.compare.comparison import compare
from stepscope.experiments.compare.side import CompareSide
from stepscope.report.comparison.html import comparisons_html
from stepscope.report.comparison.page import page_of
from stepscope.report.comparison.view import comparisons_document
from stepscope.report.comparison.words import (
    changed_name,
    distinct_kernels,
    headline,
    how_words,
    interval_words,
    part_names,
    ratio,
    sure_words,
)
from stepscope.report.document.blocks import Table, cell
from stepscope.report.document.markdown import MAX_CHARS, to_markdown
from stepscope.report.document.terminal import show, to_text
from tests.experiments.compare.test_pairing import Call, pieces
from tests.wording import any_mentions, mentions

EVIL = "</script><img src=x onerror=alert(1)>\x1b[31m|`_*\u202e@someone {{7*7}}"


def render_comparisons(comparisons: list[Comparison], width: int = 80) -> str:
    return to_text(comparisons_document(comparisons), width=width)


def comparisons_markdown(comparisons: list[Comparison]) -> str:
    return to_markdown(comparisons_document(comparisons))


def made(
    before: list[Call],
    after: list[Call],
    name: str = "run",
    steps: tuple[float, float] = (20.0, 10.0),
) -> Comparison:
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
    return made(
        [(f"forward {EVIL}", EVIL, 9e6)], [(f"forward {EVIL}x", f"{EVIL}y", 4e6)], name=EVIL
    )


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
    assert json.loads(encode(as_document([evil])))["knobs"][0]["after"] == EVIL


def test_only_our_own_scripts_may_run(evil: Comparison) -> None:
    page = comparisons_html([evil])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]
    assert " style=" not in page


def test_lines_that_are_hidden_are_in_the_rest() -> None:
    before = [(f"forward aten::op{i}[{i}]", f"k{i}", 1e6 * (i + 1)) for i in range(30)]
    comparison = made(before, [])
    table = next(table for table in page_of(comparison, "B").tables if table.name == "changed")
    block = table.section.blocks[0]
    assert isinstance(block, Table)
    *others, total = [[cell(value).text for value in row] for row in block.rows]
    assert len(others) == 12 + 1
    for column in (0, 1, 2):
        sides = [0.0 if row[column] == "-" else float(row[column]) for row in [*others, total]]
        assert sum(sides[:-1]) == pytest.approx(sides[-1], abs=0.005 * len(sides))
    assert [float(text) for text in total[:3]] == [-465, 465, 0]
    text = render_comparisons([comparison])
    assert "and 18 lines more" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())


def words_of(low: float | None, high: float | None, verdict: str, value: float | None = 1.2) -> str:
    comparison = made([], [])
    smallest = None if low is None else 1.01
    speedup = Speedup(
        value=value,
        low=low,
        high=high,
        level=0.95,
        smallest=smallest,
        verdict=verdict,
        why="two steps",
    )
    return headline(replace(comparison, speedup=speedup), "B").replace("\u00a0", " ")


def test_the_headline_says_no_more_than_is_known() -> None:
    assert (
        words_of(1.1, 1.3, "faster")
        == "B is 1.20x (1.10x to 1.30x) as fast as A: a step takes 10.0 ms instead of 20.0 ms."
    )
    slower = words_of(0.7, 0.9, "slower", 0.8)
    assert mentions(slower, "B is slower", "0.80x (0.70x to 0.90x)")
    assert mentions(words_of(0.9, 1.3, "no difference seen"), "no difference", "A and B")
    assert mentions(words_of(None, None, "not told"), "B seems 1.20x")
    assert mentions(words_of(None, None, "not told", None), "cannot be compared", "two steps")


def test_the_headline_does_not_call_a_slower_run_faster_nor_one_a_change() -> None:
    assert mentions(words_of(None, None, "not told", 0.981), "seems slower", "0.981x")
    assert mentions(words_of(None, None, "not told", 0.9998), "seems about", "1.000x")
    least = words_of(1.0002, 1.0004, "faster", 1.0003)
    assert mentions(least, "B is 1.0003x (1.0002x to 1.0004x)")
    near = headline(made([], [], steps=(533.41, 533.46)), "B").replace("\u00a0", " ")
    assert mentions(near, "533.5 ms instead of 533.4 ms")
    assert mentions(headline(made([], [], steps=(20, 20)), "B"), "20.0 ms in both")


def test_steps_that_the_profiler_slowed_are_told_beside_the_answer() -> None:
    comparison = made([], [])
    first, second = (
        replace(run, source="recorded", bound="host")
        for run in (comparison.before, comparison.after)
    )
    page = page_of(replace(comparison, before=first, after=second), "B")
    assert page.headline.endswith(", while profiled.")
    assert any_mentions(page.facts, "profiler", "host", "A and B")
    device = page_of(
        replace(
            comparison,
            before=replace(first, bound="compute"),
            after=replace(second, bound="memory"),
        ),
        "B",
    )
    assert not any("The profiler slows" in fact for fact in device.facts)
    assert not any("The profiler slows" in fact for fact in page_of(comparison, "B").facts)


def test_what_a_sample_could_show_is_no_bound_on_what_it_shows() -> None:
    assert sure_words(made([], [])) is not None
    assert mentions(sure_words(made([], [])), "four times in five")


def test_kernels_that_look_alike_have_names_of_their_own() -> None:
    functors = ("at::native::MulFunctor<float>", "at::native::AddFunctor<float>")
    names = [
        f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 2ul>>(int)"
        for functor in functors
    ]
    assert distinct_kernels([*names, "gemm"]) == [
        "vectorized_elementwise_kernel<4, ...> MulFunctor",
        "vectorized_elementwise_kernel<4, ...> AddFunctor",
        "gemm",
    ]
    assert distinct_kernels(names[:1]) == ["vectorized_elementwise_kernel<4, ...>"]


def test_what_replaced_work_is_readable_in_a_narrow_terminal() -> None:
    mm = ("forward aten::mm[1]", "gemm", 5e6)
    before = [
        mm,
        *(
            (f"forward aten::{op}[1]", op, 3e6)
            for op in ("mul", "masked_fill_", "_softmax", "copy_")
        ),
        mm,
    ]
    comparison = made(before, [mm, ("forward aten::_cudnn_attention_forward[1]", "flash", 1e6), mm])
    lines = render_comparisons([comparison], width=80).splitlines()
    index = next(i for i, line in enumerate(lines) if "masked_fill_" in line)
    assert lines[index + 1].split() == ["replaced", "by", "_cudnn_attention_forward"]
    assert all(len(line) <= 80 for line in lines)
    assert any(
        line.endswith("replaced by _cudnn_attention_forward")
        for line in render_comparisons([comparison], width=110).splitlines()
    )


def test_how_work_changed_is_said_of_what_changed() -> None:
    first = Work(
        ops=("aten::mm",), kernels=(), shapes=(), precisions=("fp32", "tf32"), count=2.0, ns=1000
    )
    second = replace(first, precisions=("tf32", "fp32"))
    changed = Changed(
        name="x",
        phase=None,
        module=None,
        how=("precision",),
        paired_by="name",
        before=first,
        after=second,
    )
    assert how_words(changed) == "precision of a part"
    assert (
        how_words(replace(changed, after=replace(first, precisions=("bf16",))))
        == "precision fp32/tf32 to bf16"
    )
    graph = replace(
        changed, name="aten::add_, aten::add, 2 more", how=("launcher",), paired_by="kernel"
    )
    assert changed_name(graph) == "add_, add, 2 more"


def test_numbers_that_round_to_nothing_have_no_line() -> None:
    comparison = made([("forward aten::mm[1]", "k", 5e6)], [("forward aten::mm[1]", "k", 2e6)])
    assert comparison.device is not None
    overlap = replace(comparison.device.overlap, before_ns=-80, after_ns=0)
    rest = replace(comparison.device.rest, before_ns=80)
    text = render_comparisons(
        [replace(comparison, device=replace(comparison.device, overlap=overlap, rest=rest))]
    )
    assert not mentions(text, "at once")
    assert "no operator changed" not in text
    same = made([("forward aten::mm[1]", "k", 5e6)], [("forward aten::mm[1]", "k", 5e6)])
    unchanged = render_comparisons([same])
    assert mentions(unchanged, "ms a step, rank 0", "no operator changed")


def test_ratios_keep_the_digits_that_matter() -> None:
    assert [ratio(value) for value in (0.00214, 1.0031, 0.98, 1.08, 2.076, 12.34, 288.2)] == [
        "0.0021x", "1.003x", "0.980x", "1.08x", "2.08x", "12.3x", "288x"
    ]  # fmt: skip
    assert interval_words(
        Speedup(
            value=None, low=None, high=None, level=0.95, smallest=None, verdict="not told", why=""
        )
    ) == ("not measured")


def test_work_that_is_not_the_same_is_said_first_and_loudly() -> None:
    comparison = replace(made([], []), unequal=("batch size: 8 -> 16",))
    for text in (
        render_comparisons([comparison]),
        comparisons_markdown([comparison]),
        comparisons_html([comparison]),
    ):
        assert mentions(text, "same work", "batch size: 8 -")
    assert mentions(render_comparisons([comparison]).splitlines()[0], "A and B", "not", "same work")


def test_without_a_device_the_parts_are_called_what_a_diagnosis_calls_them() -> None:
    comparison = made([("forward aten::mm[]", "k", 9e6)], [("forward aten::mm[]", "k", 4e6)])
    assert comparison.device is not None
    on_host = replace(comparison, device=replace(comparison.device, where="host"))
    assert part_names(comparison)["idle_other"] == "idle, cause not seen"
    assert part_names(on_host)["idle_other"] == "outside operators"
    assert part_names(on_host)["compute"] == "operators"


def test_three_runs_have_letters_and_ids_of_their_own() -> None:
    comparison = made([("forward aten::mm[1]", "k", 5e6)], [("forward aten::mm[1]", "k", 2e6)])
    page = comparisons_html([comparison, comparison])
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "C against A" in page
    assert "C is 2.00x" in render_comparisons([comparison, comparison])


def test_a_comment_stays_under_what_github_takes() -> None:
    long = Work(
        ops=tuple(f"{i}{'x' * 400}" for i in range(8)),
        kernels=(),
        shapes=(),
        precisions=(),
        count=1.0,
        ns=1000,
    )
    entry = Changed(
        name="x",
        phase=None,
        module=None,
        how=("replaced",),
        paired_by="place",
        before=long,
        after=long,
    )
    comparison = made([], [])
    assert comparison.device is not None
    knobs = tuple(
        Knob(name=f"environment.{'N' * 80}{i}", before="a" * 200, after="b" * 200)
        for i in range(200)
    )
    comparison = replace(comparison, changed=(entry,) * 40, knobs=knobs)
    assert len(comparisons_markdown([comparison])) <= MAX_CHARS
    many = comparisons_markdown([comparison] * 10)
    assert len(many) <= MAX_CHARS
    assert many.count("## stepscope: ") == 10, "every answer stays"
    assert mentions(many, "left out")


def test_a_terminal_without_utf8_gets_ascii() -> None:
    comparison = made([("forward aten::m\u00fcl[1]", "k", 5e6)], [])
    console = Console(width=80, force_terminal=False, file=open("/dev/null", "w", encoding="ascii"))  # noqa: SIM115
    with console.capture() as captured:
        show(comparisons_document([comparison]), console)
    assert captured.get().isascii()
    console.file.close()
