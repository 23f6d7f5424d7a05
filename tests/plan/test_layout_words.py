"""Names of layouts spelled out: every part of the name is there, in its order."""

from __future__ import annotations

import pytest

from stepscope.plan.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout
from stepscope.plan.layout_words import name_parts, spelled_out

LAYOUTS = [
    Layout(tp=2, cp=2, pp=4, dp=4, zero_stage=3),
    Layout(tp=4, cp=2, pp=16, vpp=6, dp=8, ep=8, micro_batch=3, num_micro=16, zero_stage=3, shard=8,
           is_sequence_parallel=True, recompute="full", offload="optimizer", is_flash=False),
    *(Layout(zero_stage=stage, dp=2) for stage in range(4)),
    *(Layout(pp=2, recompute=word) for word in RECOMPUTE),
    Layout(pp=2, recompute="full", recompute_layers=12),
    *(Layout(pp=2, schedule=word) for word in SCHEDULES),
    *(Layout(offload=word) for word in OFFLOAD),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_part_of_the_name_is_spelled_out_in_its_order(layout: Layout) -> None:
    assert "-".join(name for name, _ in name_parts(layout)) == str(layout)
    assert all(words for _, words in name_parts(layout))


def test_the_words_have_the_numbers_of_the_layout() -> None:
    words = spelled_out(Layout(tp=2, cp=2, pp=4, dp=4, num_micro=8, zero_stage=3))
    assert "tp2: 2 ranks share each layer's matrices" in words
    assert "pp4: 4 pipeline stages" in words
    assert "mb1: 1 sequence at a time, 8 times a step" in words
    assert "z3: data ranks share optimizer, gradients and weights (ZeRO-3, FSDP)" in words
