"""The HTML report in a real browser: it opens without a word in the console, and answers to mouse,
keys and a screen reader."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from stepscope.pipeline.options import Options
from stepscope.pipeline.page import page_of_recording
from stepscope.pipeline.recording import Recording
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of
from tests.browser.reading import SIZES, faults_of
from tests.browser.tabs import Tabs
from tests.format_samples import samples, written
from tests.installed import absent, need, reason
from tests.report.test_html import HOSTILE
from tests.shared_data import DEMO, ROOT, SAMPLES, lab_trace, lab_traces, some, unpacked
from tests.waiting import until

need("a browser")

SINGLES = some(lab_traces("single/*.slow.*"), 2)
FIRST_RANKS = lab_traces("rank*/*.slow.rank0.*")
RANKS = some(sorted((path.name.split(".rank")[0], path.parent) for path in FIRST_RANKS), 2)


@pytest.fixture(scope="session")
def demo_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with resources.as_file(resources.files("stepscope") / "data" / "demo.pt.trace.json.gz") as path:
        return made([path], tmp_path_factory.mktemp("page"), step_ms=65.48)


def made(traces: list[Path], folder: Path, step_ms: float | None = None) -> Path:
    paths = [str(path) for path in traces]
    out = folder / "report.html"
    with Recording(paths, Options(step_ms=step_ms, use_cache=False, jobs=1)) as recording:
        out.write_text(render_page(page_of(page_of_recording(recording))), encoding="utf-8")
    return out


def opened(tabs: Tabs, path: Path, **how: Any) -> Any:
    """The page, ready."""
    page = tabs.open(path.as_uri(), **how)
    page.wait_for_selector("html[data-ready=yes]")
    return page


def check_open(tabs: Any, path: Path) -> None:
    page = opened(tabs, path)
    assert page.said == []
    assert page.locator("h1").is_visible()
    assert page.locator("#picture-chart svg path").count() > 2
    assert page.locator("#timeline-box canvas").count() == 1


@pytest.mark.parametrize("trace", SINGLES, ids=lambda path: path.name.split(".")[0])
def test_every_recorded_case_opens(tabs: Tabs, trace: Path | None, tmp_path: Path) -> None:
    if trace is None:
        absent(reason("the shared recordings"))
    check_open(tabs, made([trace], tmp_path))


@pytest.mark.parametrize("case", RANKS or [None], ids=lambda case: case[0] if case else "none")
def test_every_recorded_job_opens(
    tabs: Tabs, case: tuple[str, Path] | None, tmp_path: Path
) -> None:
    if case is None:
        absent(reason("the shared recordings"))
    check_open(tabs, made(sorted(case[1].glob(f"{case[0]}.rank*.pt.trace.json.*")), tmp_path))


def test_it_fits_and_a_screen_reader_can_read_it(tabs: Tabs, demo_page: Path) -> None:
    # The policy holds off axe's own script, too.
    page = opened(tabs, demo_page, bypass=True)
    assert faults_of(page, schemes=("light", "dark")) == []


def test_the_report_of_a_run_without_a_device_reads_as_well(tabs: Tabs, tmp_path: Path) -> None:
    page = opened(tabs, made([ROOT / "tests" / "kept" / "run"], tmp_path), bypass=True)
    assert page.said == []
    assert page.locator("#whole-run table").count() == 1
    assert page.locator("#op-table th", has_text="device ms").count() == 0
    assert faults_of(page, sizes=SIZES[1:]) == []


def test_tables_sort_and_filter_by_keyboard(tabs: Tabs, demo_page: Path) -> None:
    page = opened(tabs, demo_page)
    calls = "#kernel-table thead th:nth-child(4) button"
    column = "rows => rows.map(row => Number(row.cells[3].dataset.value))"
    before = page.eval_on_selector_all("#kernel-table tbody tr", column)
    page.focus(calls)
    page.keyboard.press("Enter")
    assert page.eval_on_selector_all("#kernel-table tbody tr", column) == sorted(
        before, reverse=True
    )
    page.keyboard.press("Enter")
    assert page.eval_on_selector_all("#kernel-table tbody tr", column) == sorted(before)
    assert page.get_attribute("#kernel-table thead th:nth-child(4)", "aria-sort") == "ascending"
    page.fill("input[data-for=kernel-table]", "gemm")
    shown = page.eval_on_selector_all(
        "#kernel-table tbody tr:not([hidden])", "rows => rows.map(row => row.textContent)"
    )
    assert 0 < len(shown) < len(before)
    assert all("gemm" in text.lower() for text in shown)
    assert page.text_content("#kernel-table-count") == f"{len(shown)} of {len(before)}"
    assert page.said == []


def test_the_timeline_zooms_and_tells_what_is_chosen(tabs: Tabs, demo_page: Path) -> None:
    page = opened(tabs, demo_page)
    canvas = page.locator("#timeline-box canvas").first
    canvas.scroll_into_view_if_needed()

    def picture() -> str:
        """Drawn anew when the browser comes to it."""
        return str(page.evaluate("document.querySelector('#timeline-box canvas').toDataURL()"))

    whole = picture()
    page.get_by_role("button", name=re.compile("zoom in|^\\+$", re.IGNORECASE)).first.click()
    until(lambda: picture() != whole)
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    # What the click draws is drawn by then: in the next frame, before which these are called.
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    nearer = picture()
    page.mouse.wheel(0, -400)
    until(lambda: picture() != nearer)
    canvas.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    # 0 fits the whole step again.
    until(lambda: picture() == whole)
    told = page.locator("#timeline-box [role=status]").first
    nothing = told.inner_text()
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowRight")
    until(lambda: told.inner_text() != nothing)
    # Its length.
    until(lambda: re.search(r"\d\s(ms|µs|s|ns)\b", told.inner_text()))
    assert page.said == []


def test_hostile_names_run_nothing(tabs: Tabs, tmp_path: Path) -> None:
    import json

    raw = json.loads(unpacked(lab_trace("single/nchw.fixed")))
    for event in raw["traceEvents"]:
        if event.get("cat") in ("kernel", "cpu_op", "user_annotation"):
            event["name"] += HOSTILE
    trace = tmp_path / "hostile.pt.trace.json"
    trace.write_text(json.dumps(raw))
    page = opened(tabs, made([trace], tmp_path))
    page.locator("#timeline-box canvas").first.focus()
    page.keyboard.press("ArrowDown")
    page.hover("#picture-chart svg path >> nth=-1", force=True)
    page.fill("input[data-for=kernel-table]", "onerror")
    assert page.locator("#kernel-table tbody tr:not([hidden])").count() > 0, (
        "they are shown, as text"
    )
    page.wait_for_timeout(200)
    assert page.said == []
    assert page.locator("img").count() == 0


def test_on_paper_it_is_light_and_unfolded(tabs: Tabs, demo_page: Path) -> None:
    page = opened(tabs, demo_page, scheme="dark")
    ink = "document.querySelector('#picture-chart svg text').getAttribute('fill')"
    on_screen = page.evaluate(ink)
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    # Drawn anew in other colours, when the browser comes to it.
    until(lambda: page.evaluate(ink) != on_screen)
    assert page.evaluate("[...document.querySelectorAll('details')].every(one => one.open)")
    assert page.said == []


def test_recordings_beside_the_trace_have_a_part_each(tabs: Tabs, tmp_path: Path) -> None:
    names = {
        "ncu-csv": "ncu_raw.csv",
        "memory-snapshot": written("memory-snapshot", tmp_path).name,
        "torch-logs": "torch_logs.txt",
        "nvidia-smi": "nvidia_smi.csv",
        "job-log": "ddp_log.txt",
    }
    path = made(
        [
            DEMO,
            *(SAMPLES / "formats" / name for name in names.values() if "snapshot" not in name),
            *tmp_path.iterdir(),
        ],
        tmp_path,
        step_ms=65.48,
    )
    page = opened(tabs, path, bypass=True)
    parts = page.locator("#auxiliary .recording")
    assert [words.split()[0] for words in parts.locator("h3").all_inner_texts()] == list(names)
    assert [words.split("/")[-1] for words in parts.locator(".paths").all_inner_texts()] == list(
        names.values()
    )
    assert page.locator("#contents a[href='#auxiliary']").is_visible()
    # Folded tables have nothing to look at.
    page.eval_on_selector_all("#auxiliary details", "all => all.forEach(it => { it.open = true; })")
    assert parts.locator("table").count() >= 6
    # The rest of the page has its own test.
    assert faults_of(page, "#auxiliary", sizes=SIZES[:1]) == []
    assert page.said == []


def test_it_reads_without_scripts(tabs: Tabs, demo_page: Path) -> None:
    context = tabs.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(demo_page.as_uri())
    assert page.locator("h1").is_visible()
    assert page.locator(".card").count() >= 1
    assert page.locator("#kernel-table tbody tr").count() > 10
    context.close()


def test_other_steps_can_be_chosen_in_the_timeline(tabs: Tabs, demo_page: Path) -> None:
    page = opened(tabs, demo_page)
    choice = page.locator("#timeline-choice")
    words = choice.locator("option").all_text_contents()
    assert words[0].endswith("(median)")
    assert len(words) == 2
    before = page.locator(".t-title").text_content()
    choice.select_option("1")
    after = page.locator(".t-title").text_content()
    assert before != after
    assert "of 2 measured" in str(after)
    assert page.locator("canvas.t-canvas").count() == 1
    assert page.said == []


def test_recorded_stacks_are_a_flame_graph(tabs: Tabs, tmp_path: Path) -> None:
    trace = lab_trace("traces/sage_small_copies.slow.stacks")
    path = made([trace], tmp_path)
    page = opened(tabs, path, bypass=True)
    assert page.locator("#flame svg").locator("rect").count() > 2
    assert faults_of(page, "#flame", sizes=SIZES[1:]) == []
    assert page.said == []


@pytest.mark.parametrize("kind", ["memory-snapshot", "host-profile"])
def test_a_recording_without_a_trace_fits_a_phone(tabs: Tabs, kind: str, tmp_path: Path) -> None:
    sample = next(each for each in samples() if each.kind == kind)
    paths = []
    for name, data in sample.files.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(data)
    page = opened(tabs, made(paths, tmp_path), size=SIZES[1])
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert page.said == []
