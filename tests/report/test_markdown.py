"""The comment for a pull request: its structure as a Markdown reader sees it, whatever a stranger's
names want."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from msgspec import structs
from msgspec.structs import replace

from stepscope.cli.main import main
from stepscope.core.diagnosis import Diagnosis, Finding, SourceLocation
from stepscope.core.gate import Gate, Result
from stepscope.core.recordings.nccl import NcclLog, NcclWarning
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.report.diagnosis.view import step_section
from stepscope.report.diagnosis.whole import MAX_FINDINGS, diagnosis_document
from stepscope.report.document.markdown import MAX_CHARS, escape, to_markdown
from stepscope.report.words import clean
from tests.scenarios import SCENARIOS
from tests.shared_data import DEMO, SAMPLES
from tests.wording import mentions

pytestmark = pytest.mark.usefixtures("measured_once")

HOSTILE = (
    "a | b || c |",
    "`code` ``two`` ```",
    "<script>alert(1)</script>",
    "</code></summary></details><img src=x onerror=alert(1)>",
    "<!-- hidden",
    "@octocat and @org/team",
    "[click](http://evil.example) and [ref][1]",
    "![beacon](http://evil.example/x.png)",
    (
        "https://evil.example, HTTP://evil.example, www.evil.example, WWW.evil.example, "
        "me@evil.example"
    ),
    "<https://evil.example>",
    "#123 org/repo#9 GH-7 gh-8",
    "1. list",
    "12) list",
    "# heading",
    "- item",
    "+ item",
    "* item",
    "> quote",
    "---",
    "===",
    ":--",
    "~~~",
    "two\nlines\n\n# and a heading\n\n- a\n- list\n```\nfence",
    "*b* **b** _i_ __i__ ~~s~~ $x$ $$y$$",
    "&lt;b&gt; &#64;octocat &amp;",
    "\\| \\` \\",
    "| --- | --- |",
    "\u202egnp.lenrek \x1b[31m\x07",
    "lone \ud800 surrogate",
)
SHOUTS = re.compile(r"@[A-Za-z0-9]|#\d|\bGH-\d|://|\bwww\.", re.IGNORECASE)
"""What GitHub makes links and mentions of after it has drawn the text."""


class Drawn(HTMLParser):
    """Tags in order, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name != "style"], f"<{tag}> has {attrs}"
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return "".join(self.text)


def drawn(markdown: str) -> Drawn:
    return Drawn(
        MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)
    )


@pytest.fixture(scope="module")
def demo() -> Diagnosis:
    return diagnose([str(DEMO)], Options(step_ms=65.48, use_cache=False, jobs=1))


def shouting(text: str) -> NcclLog:
    """A log of NCCL with this text wherever a stranger's may stand."""
    warnings = (NcclWarning(text=text, count=2),)
    return NcclLog(
        library="nccl",
        files=(text,),
        versions=(text,),
        hosts=(text,),
        networks=(text,),
        interfaces=(text,),
        warnings=warnings,
        remarks=warnings,
        env={"NCCL_NET": (text,)},
        problems=(text,),
    )


def everywhere(diagnosis: Diagnosis, text: str) -> tuple[Diagnosis, Gate]:
    """The diagnosis with this text wherever a text may stand."""
    rank = structs.replace(diagnosis.facts.ranks[0], notes=(f"rank {text}",), unknown={text: 3})
    finding = structs.replace(
        diagnosis.findings[0],
        code=text,
        summary=text,
        action=text,
        evidence=(text, text),
        source_locations=(SourceLocation(line=text, module=text, share=0.5),),
    )
    result = Result(check=text, source=text, status="undecided", values={}, reason=text)
    changed = structs.replace(
        diagnosis,
        verdict=structs.replace(diagnosis.verdict, summary=text),
        step=structs.replace(diagnosis.step, source=text),
        findings=(finding,),
        facts=structs.replace(diagnosis.facts, ranks=(rank,), nccl=shouting(text)),
        notes=(text,),
    )
    return changed, Gate(results=(result,), baseline=text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_changes_no_structure_and_is_shown_as_it_is(
    text: str, demo: Diagnosis
) -> None:
    tame = drawn(to_markdown(diagnosis_document(*everywhere(demo, "tame"))))
    markdown = to_markdown(diagnosis_document(*everywhere(demo, text)))
    page = drawn(markdown)
    assert page.tags == tame.tags
    assert not SHOUTS.search(page.words)
    shown = " ".join(page.words.replace("\u200b", "").split())
    # Once each: summary of the verdict, source, check, why, baseline, code, summary, action; twice
    # evidence, place; notes. NCCL's version, warning, remark and problem are not cut; its other
    # words are.
    assert shown.count(" ".join(clean(text).split())) >= 16
    markdown.encode("utf-8")


@pytest.mark.parametrize("text", HOSTILE)
def test_escaped_text_is_one_line_with_nothing_to_read(text: str) -> None:
    line = escape(text)
    assert "\n" not in line
    assert not re.search(r"[<>`*_\[\]|~\\@$]", line)
    assert not re.match(r"\d+[.)]|[-+=:#>]", line)


def test_plain_words_stay_plain() -> None:
    text = "The loader (2 workers) takes 46.3 ms: 52 % of the step."
    assert escape(text) == text


def test_the_demo_comment_has_verdict_table_and_finding(demo: Diagnosis) -> None:
    page = drawn(to_markdown(diagnosis_document(demo)))
    assert page.tags[0] == "h2"
    assert demo.verdict.summary in page.words
    assert mentions(page.words, "65.5 ms (as given; 81.6 ms while profiled)")
    finding = demo.findings[0]
    gain = (
        f"{finding.predicted_speedup:.2f}x "
        f"({finding.predicted_low:.2f}-{finding.predicted_high:.2f})"
    )
    assert f"1. {finding.code} {gain}" in page.words
    assert finding.action in page.words
    # What the terminal has further down is folded: each finding's evidence, device, kernels by
    # kind and by name, marks, host, copies, notes.
    assert page.tags.count("details") == page.tags.count("/details") == 11
    is_open = page.tags[: page.tags.index("details")]
    assert is_open.count("table") == 1, "where the step goes stands open"
    assert page.tags.count("table") == 7
    # Folded lists are lists, not text inside raw HTML.
    folded = page.tags[: page.tags.index("/details")]
    assert folded.count("li") == len(finding.evidence)
    last = page.tags[len(page.tags) - page.tags[::-1].index("details") :]
    assert last.count("li") == len(demo.notes)


def test_the_tables_parts_sum_to_the_step(demo: Diagnosis) -> None:
    rows = re.findall(
        r"^\| ([a-z][^|]*?) \| ([\d.]+) \| ([\d.]+) \|$",
        to_markdown((step_section(demo.facts.ranks[0]),)),
        re.MULTILINE,
    )
    parts = demo.facts.ranks[0].typical_parts_ns
    assert parts is not None
    assert len(rows) == sum(1 for ns in parts.values() if ns > 0)
    assert sum(float(ms) for _, ms, _ in rows) == pytest.approx(
        sum(parts.values()) / 1e6, abs=0.05 * len(rows)
    )
    assert sum(float(share) for _, _, share in rows) == pytest.approx(100, abs=0.05 * len(rows))


def test_what_was_not_measured_is_said(demo: Diagnosis) -> None:
    rank = demo.facts.ranks[0]
    bare = structs.replace(
        rank,
        partition=None,
        steps=structs.replace(rank.steps, windows=()),
        busy_ns=(),
        comms_hidden_ns=(),
        roofline=structs.replace(rank.roofline, mfu=None),
    )
    nothing = structs.replace(
        demo,
        facts=structs.replace(demo.facts, ranks=(bare,)),
        step=structs.replace(demo.step, ms=None),
        findings=(),
    )
    words = drawn(to_markdown(diagnosis_document(nothing))).words
    assert mentions(words, "step time", "not measured")
    assert "MFU: not measured" in words
    assert mentions(words, "no whole step")
    assert not re.search(r"(?<!\d)0 %", words)


def test_a_gate_stands_above_the_step_with_what_stopped_it_first(demo: Diagnosis) -> None:
    passed = Result(
        check="step_ms > 99",
        source="--fail-if",
        status="passed",
        values={"step_ms": 65.5},
        reason="step_ms 65.5",
    )
    why = "step_ms 65.5; 65.5 > 60"
    failed = replace(passed, check="step_ms > 60", status="failed", reason=why)
    words = drawn(
        to_markdown(diagnosis_document(demo, Gate(results=(passed, failed), baseline="main.json")))
    ).words
    assert (
        words.index("Gate failed")
        < words.index("step_ms > 60")
        < words.index("step_ms > 99")
        < words.index("Where the step")
    )
    assert "65.5 > 60" in words
    assert "Baseline: main.json" in words
    assert (
        "Gate passed" in drawn(to_markdown(diagnosis_document(demo, Gate(results=(passed,))))).words
    )


def test_a_comment_is_never_too_long_for_github(demo: Diagnosis) -> None:
    long = "<|>" * 2000
    finding: Finding = structs.replace(
        demo.findings[0], summary=long, action=long, evidence=(long,) * 50
    )
    result = Result(check=long, source=long, status="failed", values={}, reason=long)
    huge = structs.replace(
        demo, findings=(finding,) * 40, notes=tuple(f"{i} {long}" for i in range(50))
    )
    warnings = tuple(NcclWarning(text=f"{i} {long}", count=1) for i in range(50))
    huge = structs.replace(
        huge,
        facts=structs.replace(
            demo.facts, nccl=structs.replace(shouting(long), warnings=warnings, remarks=warnings)
        ),
    )
    markdown = to_markdown(diagnosis_document(huge, Gate(results=(result,) * 100)))
    assert len(markdown) <= MAX_CHARS
    words = drawn(markdown).words
    assert f"and {40 - MAX_FINDINGS} findings more" in words
    assert "and 76 checks more" in words
    assert not mentions(words, "none of which")
    assert "and 45 warnings more" in words
    assert mentions(words, "left out")


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_drawn(name: str) -> None:
    page = drawn(to_markdown(diagnosis_document(SCENARIOS[name]())))
    opened = [
        tag for tag in page.tags if not tag.startswith("/") and tag not in ("hr", "br", "img")
    ]
    assert sorted(opened) == sorted(tag[1:] for tag in page.tags if tag.startswith("/"))
    ours = "h2 h3 h4 p strong table thead tbody tr th td ul li code sub details summary blockquote"
    assert set(opened) <= set(ours.split())


def test_what_nccl_logged_is_told_alone_and_beside_a_trace() -> None:
    log = str(SAMPLES / "formats" / "nccl_2rank_hosts.txt")
    for paths in ([log], [str(DEMO), log]):
        words = drawn(
            to_markdown(diagnosis_document(diagnose(paths, Options(use_cache=False, jobs=1))))
        ).words
        part = words[words.index("NCCL\nfrom its log") :].replace("\u200b", "")
        # As they stand in the file: its version, its two ranks, the four channels via NET/Socket,
        # the interface, the variable.
        for told in (
            "version: 2.28.9+cuda13.0", "2 ranks on 2 nodes, 2 channels", ("connections: "
"NET/Socket 4"), "lo:127.0.0.1<0>",
            "NCCL_HOSTID=host0|host1", "NCCL_IB_DISABLE=1 switches InfiniBand and RoCE off",
        ):  # fmt: skip
            assert told in part
        assert ("What the recordings show" in part) is (len(paths) == 1), (
            "a trace of one rank says nothing of links"
        )
    assert (
        "from its log" not in drawn(to_markdown(diagnosis_document(SCENARIOS["healthy"]()))).words
    )


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], demo: Diagnosis) -> None:
    assert main(["demo", "--format", "markdown"]) == 0
    assert capsys.readouterr().out == to_markdown(diagnosis_document(demo))
    assert (
        main(["diagnose", str(DEMO), "--no-cache", "--step-ms", "65.48", "--format", "markdown"])
        == 0
    )
    assert capsys.readouterr().out == to_markdown(diagnosis_document(demo))
