"""Compressed gradients: what crosses, what it takes on the device, and when it is worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.errors import UsageError
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.compression import (
    KEPT_BYTES,
    KINDS,
    WORDS,
    Compression,
    factored_share,
    parse_compression,
    wire_bytes,
)
from stepscope.plan.estimate import choice_of
from stepscope.plan.framework import DDP, FSDP
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout
from stepscope.plan.what_if import changed_job, parse_change

SLOW = TrainingJob(
    model=find_model("gpt2-xl"), cluster=parse_cluster("4x8xA100@10gbe"), seq_len=1024,
    global_batch=256, framework=DDP,
)  # fmt: skip
LAYOUT = Layout(dp=32, micro_batch=8)


def test_every_kind_has_its_words_and_sends_less_the_more_it_is_asked_for() -> None:
    assert set(WORDS) == set(KEPT_BYTES) == set(KINDS)
    model = SLOW.model
    thin, wide = (factored_share(model, rank) for rank in (1, 32))
    assert 0 < 31 * thin < wide <= 32 * thin < 1
    assert factored_share(model, 10**6) == 1.0
    sent = {
        word: wire_bytes(parse_compression(word), model, 1e9, 8)
        for word in ("bf16", "int8", "powersgd:4", "topk:0.01")
    }
    assert sent["bf16"] == 2e9
    assert sent["int8"] == 1e9
    assert sent["powersgd:4"] < 0.01 * 4e9
    # Every rank's are gathered by all of them.
    assert wire_bytes(parse_compression("topk:0.01"), model, 1e9, 64) == 8 * sent["topk:0.01"]


@pytest.mark.parametrize("word", ["fp4", "powersgd", "powersgd:0", "topk:2", "topk:0.0", "int8:4"])
def test_what_is_no_compression_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=r"powersgd:4 or topk:0.01"):
        parse_compression(word)


@pytest.mark.parametrize("word", ["bf16", "powersgd:4", "int8", "topk:0.01"])
def test_it_gains_on_a_slow_network_and_not_where_backward_hides_the_exchange(word: str) -> None:
    def gain(job: TrainingJob) -> float:
        less = changed_job(job, parse_change(f"compression={word}"))
        return choice_of(job, LAYOUT).step_s - choice_of(less, LAYOUT).step_s

    assert gain(SLOW) > 0.1 * choice_of(SLOW, LAYOUT).step_s
    # One node's links hide what is left; making it smaller is not hidden.
    near = replace(SLOW, cluster=parse_cluster("1x8xH100"), global_batch=64)
    alone = replace(LAYOUT, dp=8)
    less = changed_job(near, parse_change(f"compression={word}"))
    assert choice_of(near, alone).step_s < 1.05 * choice_of(less, alone).step_s


def test_errors_are_kept_and_one_rank_has_nobody_to_send_to() -> None:
    thin = replace(SLOW, compression=Compression(kind="powersgd", rank=4))
    grown = choice_of(thin, LAYOUT).memory_bytes - choice_of(SLOW, LAYOUT).memory_bytes
    assert grown == pytest.approx(4 * SLOW.model.num_params, rel=0.1)
    alone = Layout(micro_batch=8, num_micro=32)
    single = replace(SLOW, cluster=parse_cluster("1xA100"))
    told = choice_of(replace(single, compression=thin.compression), alone)
    assert told.step_s == choice_of(single, alone).step_s


def test_hooks_are_of_gradients_that_every_rank_has_whole() -> None:
    changed = changed_job(replace(SLOW, framework=FSDP), parse_change("compression=int8"))
    assert changed.framework == DDP
    sharded = replace(LAYOUT, zero_stage=3)
    assert (
        choice_of(changed, sharded).step_s
        == choice_of(replace(changed, compression=None), sharded).step_s
    )
