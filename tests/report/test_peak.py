"""Where the peak goes, in the terminal and as a picture."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.core.codec import decode
from stepscope.core.diagnosis import Diagnosis, DiagnosisDocument
from stepscope.core.peak import PeakWaterfall
from stepscope.pipeline.page import Page
from stepscope.report.diagnosis.json import document_of, to_json
from stepscope.report.diagnosis.peak import peak_sections
from stepscope.report.document.terminal import to_text
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of, page_of_document
from stepscope.report.html.peak import LEFT, RIGHT, peak_picture
from tests import scenarios
from tests.report.test_html import HOSTILE
from tests.wording import mentions


def healthy_waterfall(**changes: Any) -> tuple[Diagnosis, PeakWaterfall]:
    made = scenarios.healthy()
    assert made.facts.peak_waterfall is not None
    changed = replace(made.facts.peak_waterfall, **changes)
    return replace(made, facts=replace(made.facts, peak_waterfall=changed)), changed


def picture_of(diagnosis: Diagnosis) -> dict[str, Any]:
    picture = peak_picture(document_of(diagnosis))
    assert picture is not None
    return picture


def test_bars_go_down_from_the_whole_to_what_was_achieved() -> None:
    made, waterfall = healthy_waterfall()
    bars = picture_of(made)["bars"]
    assert (bars[0]["x"], bars[0]["end"]) == (LEFT, RIGHT)
    for before, after in pairwise(bars[1:-1]):
        assert after["end"] == pytest.approx(before["x"], abs=1.1)
    assert bars[-1]["x"] == LEFT
    assert waterfall.achieved is not None
    assert bars[-1]["value"] == f"{waterfall.achieved * 100:.1f} %"
    assert bars[-2]["x"] == pytest.approx(bars[-1]["end"], abs=1.1)


def test_a_kept_diagnosis_has_the_picture_too() -> None:
    made, _ = healthy_waterfall()
    kept = decode(to_json(made), DiagnosisDocument, "kept")
    assert page_of_document(kept)["peak"]["bars"] == picture_of(made)["bars"]


def test_an_older_diagnosis_has_none() -> None:
    values = json.loads(to_json(scenarios.healthy()))
    del values["peak_waterfall"]
    del values["ranks"][0]["peak_waterfall"]
    older = decode(json.dumps(values), DiagnosisDocument, "older")
    page = page_of_document(older)
    assert page["peak"] is None
    assert 'id="peak"' not in render_page(page)


def test_a_strangers_device_stays_text() -> None:
    made, _ = healthy_waterfall(device=HOSTILE, precision=HOSTILE)
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)

    Reader().feed(render_page(page_of(Page(diagnosis=made))))
    assert "img" not in tags
    assert "svg" in tags


def test_the_table_has_what_is_lost_and_what_is_left() -> None:
    _, waterfall = healthy_waterfall()
    text = to_text(peak_sections(waterfall))
    assert mentions(text, "100 %", "dense bf16 peak", "NVIDIA H100 SXM")
    rows = [line.rsplit(None, 1)[0] if "#" in line else line for line in text.splitlines()]
    assert any("memory-bound kernels" in row and "16.2" in row for row in rows)
    assert any("achieved" in row and "41.0" in row for row in rows)


def test_what_is_not_known_is_said() -> None:
    _, waterfall = healthy_waterfall(achieved=None, is_least=True, device=None, peak_flops=None)
    text = to_text(peak_sections(waterfall))
    assert mentions(text, "achieved", "not known")
    assert peak_sections(None) == ()
