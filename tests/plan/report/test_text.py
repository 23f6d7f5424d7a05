"""A plan in the terminal and as JSON: what is not known is said, and names stay harmless."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.contract.plan import Variant
from stepscope.plan.estimate import choice_of, choices_of
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout, Layouts
from stepscope.plan.report.account import MEMORY_WORDS, TIME_WORDS, Plan, account_of, described
from stepscope.plan.report.explain import explained
from stepscope.plan.report.text import plan_document
from stepscope.plan.report.words import gib, money, seconds, short_count
from stepscope.plan.what_if import budget
from stepscope.report.document.terminal import to_text
from tests.wording import mentions

JOB = TrainingJob(
    model=find_model("llama3-8b"), cluster=parse_cluster("1x8xH100"), seq_len=8192, global_batch=16
)
BEST = Layout(dp=8, num_micro=2, zero_stage=3)
OTHER = Layout(tp=2, dp=4, num_micro=4, zero_stage=1, is_sequence_parallel=True, recompute="full")


def plan_of(job: TrainingJob = JOB, **more: object) -> Plan:
    first, second = (
        account_of(job, choice) for choice in choices_of(job, Layouts.of([BEST, OTHER]))
    )
    second = structs.replace(second, why="recomputation +0.40 s")
    plan = Plan(
        job=described(job),
        training=job,
        best=first,
        layouts=(first, second),
        counts={"tried": 2, "fit": 2},
    )
    return structs.replace(plan, **more)


def test_every_part_has_words() -> None:
    account = plan_of().layouts[0]
    assert set(account.memory) == set(MEMORY_WORDS)
    assert set(account.time) == set(TIME_WORDS)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_asked(width: int) -> None:
    plan = plan_of(
        scaling=(
            Variant(name="8", num_devices=8, best=plan_of().best),
            Variant(name="1", num_devices=1, best=None),
        )
    )
    text = to_text(plan_document(plan), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert mentions(text, "nothing fits") or width < 80


def test_a_loser_has_its_reason_and_the_best_has_none() -> None:
    lines = to_text(plan_document(plan_of())).splitlines()
    index = next(i for i, line in enumerate(lines) if str(OTHER) in line)
    assert lines[index + 1].strip() == "recomputation +0.40 s"
    assert any("best" in line and str(BEST) in line for line in lines)


def test_power_and_price_that_are_not_known_are_not_zero() -> None:
    dark = replace(JOB, cluster=replace(JOB.cluster, power_w=None, price_per_hour=None))
    told = budget(dark, choice_of(dark, BEST), 1e12)
    text = to_text(plan_document(plan_of(dark, budget=told)))
    assert mentions(text, "not known", "device's power")
    assert "cost" not in text
    printed = plan_of(dark, budget=told).budget
    assert printed is not None
    assert printed.cost is None
    assert printed.energy_kwh is None


def test_a_strangers_model_name_reaches_no_terminal() -> None:
    hostile = replace(JOB, model=replace(JOB.model, name="evil\x1b[31m[bold]\u202e"))
    text = to_text(plan_document(plan_of(hostile)))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]" in text


def test_the_account_multiplies_out() -> None:
    account = account_of(JOB, choice_of(JOB, OTHER))
    (_, _, shape), (_, _, memory), (_, _, time) = explained(JOB, account)
    assert [part.word for part in shape] == ["devices", "sequences", "parameters here"]
    words = {part.word: part.formula for part in memory}
    # 16-bit weights of half the model; Adam's 12 bytes over four data ranks.
    assert words["weights"].endswith(" x 2 bytes")
    assert "/ 4 ranks" in words["optimizer"]
    assert words["optimizer"].endswith(" x 12 bytes")
    assert all(part.formula for part in (*memory, *time))
    (recompute,) = [part for part in time if part.word == "recompute"]
    assert mentions(recompute.formula, "layers", "once more")


def test_short_figures() -> None:
    assert short_count(8_030_261_248).replace("\u00a0", " ") == "8.03 B"
    assert gib(80 * 2**30).replace("\u00a0", " ") == "80.0 GiB"
    assert [seconds(value).replace("\u00a0", " ") for value in (113.2, 1.7, 0.0142, 3e-5)] == [
        "113 s",
        "1.70 s",
        "14.2 ms",
        "30.0 us",
    ]
    assert money(1_401_600).replace("\u00a0", " ") == "1 401 600"
