"""resharded-forward: parameters fetched twice; fetched once, or of other sizes, is right."""

from __future__ import annotations

import pytest

from stepscope.rules.resharded_forward import propose_team
from tests.rules.crews import NODE, Fleet, gain

SIZES = (8 << 20, 12 << 20, 12 << 20, 16 << 20)


def sharded(*, again: tuple[int, ...]) -> Fleet:
    """Four layers gathered in forward; those of `again` gathered in backward."""
    fleet = Fleet()
    for _ in range(4):
        for size in SIZES:
            fleet.collective("all_gather", size, 400)
            fleet.compute(100)
        for size in again:
            fleet.collective("all_gather", size, 400, inside=[NODE.format("RegisterPostBackwardFunctionBackward")])
            fleet.compute(200, backward=True)
        for size in SIZES:
            fleet.collective("reduce_scatter", size, 100, inside=[NODE.format("RegisterPostBackwardFunctionBackward")])
        fleet.step()
    return fleet


def test_the_second_gather_is_gone() -> None:
    crew = sharded(again=SIZES).crew()
    said = propose_team(crew)
    assert said is not None
    assert "4 all-gathers a step" in said.evidence[0]
    assert gain(crew, said) == pytest.approx(4.9 / 3.3, rel=0.1)


@pytest.mark.parametrize("again", [(), (1 << 20, 1 << 20), (8 << 20,)])
def test_gathered_once_or_something_else_is_right(again: tuple[int, ...]) -> None:
    assert propose_team(sharded(again=again).crew()) is None
