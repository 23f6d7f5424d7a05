"""Plots are figures that draw what the diagnosis says."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from stepscope.core.facts import PARTS
from stepscope.errors import InputError
from stepscope.tables.plots import findings_figure, ranks_figure, step_figure
from stepscope.tables.run import ShownDiagnosis, load
from tests.builders import trace_text, write
from tests.installed import need
from tests.shared_data import DEMO, lab_traces

need("matplotlib")


@pytest.fixture(scope="module")
def diagnosis() -> ShownDiagnosis:
    return load(DEMO, 65.48, cache=False).diagnosis


def test_the_parts_of_a_bar_are_those_of_the_step(diagnosis: ShownDiagnosis) -> None:
    axes = step_figure(diagnosis).axes[0]
    parts = diagnosis.facts.ranks[0].typical_parts_ns
    assert parts is not None
    drawn = {bars.get_label(): bars.patches[0] for bars in axes.containers}
    assert set(drawn) == {part.replace("_", " ") for part in PARTS if parts[part]}
    end = 0.0
    for part in PARTS:
        if parts[part]:
            bar = drawn[part.replace("_", " ")]
            assert bar.get_x() == pytest.approx(end), "each part begins where the one before ends"
            assert bar.get_width() == pytest.approx(parts[part] / 1e6)
            end += bar.get_width()
    assert end == pytest.approx((diagnosis.facts.ranks[0].steps.step_interval_ns or 0) / 1e6)


def test_findings_are_drawn_after_todays_step(diagnosis: ShownDiagnosis) -> None:
    axes = findings_figure(diagnosis).axes[0]
    codes = [finding.code for finding in diagnosis.findings]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["today", *codes, "all of them"]
    widths = [bar.get_width() for bar in axes.patches]
    steps = [finding.predicted_step_ms for finding in diagnosis.findings]
    assert widths[:-1] == pytest.approx([65.48, *steps])


def test_a_figure_is_a_picture_and_needs_no_window(diagnosis: ShownDiagnosis) -> None:
    for draw in (step_figure, findings_figure, ranks_figure):
        assert draw(diagnosis)._repr_png_().startswith(b"\x89PNG")


def test_hostile_words_are_drawn_as_they_are(diagnosis: ShownDiagnosis) -> None:
    finding = structs.replace(diagnosis.findings[0], code="$\\frac{$")
    verdict = structs.replace(diagnosis.verdict, summary="$\\frac{$ \x1b[31m")
    hostile = structs.replace(diagnosis, findings=(finding,), verdict=verdict)
    assert findings_figure(hostile)._repr_png_()
    figure = step_figure(hostile)
    assert figure._repr_png_()
    assert "\x1b" not in figure.axes[0].get_title(loc="left")


def test_without_steps_there_is_a_reason_not_an_empty_picture(tmp_path: Path) -> None:
    empty = load(write(tmp_path / "a.json", trace_text([])), cache=False)
    for plot in (empty.plot_step, empty.plot_findings, empty.plot_ranks):
        with pytest.raises(InputError, match="measured"):
            plot()


def test_waits_stand_on_top_of_each_ranks_own_time() -> None:
    run = load(lab_traces("ranks2/ddp_straggler.slow.*"), cache=False)
    axes = run.plot_ranks().axes[0]
    own, waits = axes.containers
    for rank, low, high in zip(run.diagnosis.facts.ranks, own.patches, waits.patches, strict=True):
        assert low.get_height() + high.get_height() == pytest.approx(
            (rank.steps.step_interval_ns or 0) / 1e6
        )
        assert high.get_height() == pytest.approx((rank.typical_parts_ns or {})["comms_wait"] / 1e6)
    assert any(bar.get_height() > 0 for bar in waits.patches)
