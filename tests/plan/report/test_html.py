"""A plan as a page: it holds what the plan says, asks nobody for anything, and a stranger's text
stays text."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace

import pytest
from msgspec import structs

from stepscope.plan.contract.plan import Variant
from stepscope.plan.report.html import page_of, plan_html
from tests.plan.report.test_text import JOB, plan_of
from tests.report.test_html import HOSTILE, Reader
from tests.wording import mentions


def test_the_page_has_bars_that_add_up() -> None:
    plan = plan_of()
    page = page_of(plan)
    assert plan.best is not None
    used = sum(float(part["width"]) for part in page["memory"])
    assert used == pytest.approx(1000 * plan.best.memory_bytes / JOB.cluster.memory_bytes, rel=0.01)
    assert sum(float(part["width"]) for part in page["time"]) == pytest.approx(1000, rel=0.01)
    ends = [float(part["at"]) + float(part["width"]) for part in page["memory"]]
    assert [float(part["at"]) for part in page["memory"]][1:] == pytest.approx(ends[:-1], abs=0.02)


def test_nothing_runs_but_our_own_and_nothing_is_loaded() -> None:
    text = plan_html(plan_of())
    read = Reader(text)
    policy = next(
        attrs["content"]
        for tag, attrs in read.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy
    for kind, body in re.findall(r"<(script|style)>(.*?)</\1>", text, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy, kind
    for tag, attrs in read.tags:
        assert not {"src", "style", "onclick"} & set(attrs), tag
        assert tag != "link"
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_a_strangers_name_stays_text() -> None:
    hostile = replace(JOB, model=replace(JOB.model, name=HOSTILE))
    text = plan_html(
        plan_of(
            hostile,
            assumptions=(HOSTILE,),
            what_ifs=(Variant(name=HOSTILE, num_devices=8, best=None),),
        )
    )
    assert "<img" not in text
    assert "{{7*7}}" in Reader(text).text["title"][0]
    assert len(re.findall(r"<script", text)) == 3


def test_a_scaling_curve_has_a_dot_for_each_width_that_fits() -> None:
    best = plan_of().best
    assert best is not None
    twice = structs.replace(best, tokens_per_s=1.8 * best.tokens_per_s)
    points = (
        Variant(name="4", num_devices=4, best=None),
        Variant(name="8", num_devices=8, best=best),
        Variant(name="16", num_devices=16, best=twice),
    )
    page = page_of(plan_of(scaling=points))
    curve = page["scaling_curve"]
    assert [tick["word"] for tick in curve["x_ticks"]] == ["8", "16"]
    assert len(curve["dots"]) == 2
    (table,) = page["scaling"].blocks
    assert [row[3].replace("\u00a0", " ") for row in table.rows] == ["", "100 %", "90 %"]
    # Less than ideal lies below it, and down is more on a page.
    assert float(curve["dots"][1]["y"]) > float(curve["ideal"].split(",")[-1])


def test_a_plan_that_fits_nowhere_still_has_a_page() -> None:
    nothing = structs.replace(plan_of(), best=None, layouts=(), advice=("buy more",))
    text = plan_html(nothing)
    assert "buy more" in text
    assert mentions(text, "no layout of llama3-8b")
