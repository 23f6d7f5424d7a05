"""The space of layouts and the search through it, against plain loops."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepscope.plan import search as search_module
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster import USABLE, Cluster
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.devices import make_cluster
from stepscope.plan.estimate import PART_WORDS, SAME, Choice, choice_of, estimate, estimate_one, why
from stepscope.plan.framework import MEGATRON, MEGATRON_CORE, TORCHTITAN
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout, Layouts, alike
from stepscope.plan.layout_words import parse_layout
from stepscope.plan.model import Experts, Model
from stepscope.plan.parameters import fullest_stage, layers_by_piece
from stepscope.plan.search import SearchResult, least_memory, search
from stepscope.plan.space import CHUNK_ROWS, Grid, Space, divisors, open_space
from stepscope.plan.validate import problems
from tests.waiting import LONGEST_S
from tests.wording import mentions

DENSE = Model(
    name="dense", layers=6, hidden=512, heads=8, kv_heads=2, head_dim=64, ffn_hidden=1536,
    vocab=32000,
)  # fmt: skip
MIXTURE = replace(
    DENSE, name="mixture", layers=4, kv_heads=4, experts=Experts(num=4, top_k=2, ffn_hidden=512)
)
OPEN = Space(
    schedule=SCHEDULES,
    zero_stage=(0, 1, 2, 3),
    is_sequence_parallel=(False, True),
    offload=OFFLOAD,
    is_flash=(True, False),
)
ABLE = replace(
    MEGATRON,
    has_context=True,
    has_sequence=True,
    zero_stages=(0, 1, 2, 3),
    offloads=("optimizer", "all"),
)


def small_cluster(memory_gib: float = 2.0, num: int = 8, per_node: int = 4) -> Cluster:
    return make_cluster("A100", num, per_node, memory_bytes=memory_gib * 2**30)


def small_job(model: Model = DENSE, **changes: object) -> TrainingJob:
    job = TrainingJob(
        model=model, cluster=small_cluster(), seq_len=1024, global_batch=8, framework=ABLE
    )
    return replace(job, **changes)  # type: ignore[arg-type]


def layouts_of(grid: Grid) -> list[Layout]:
    return [chunk.layout(place) for chunk in grid.chunks() for place in range(len(chunk))]


def every_layout(job: TrainingJob) -> Iterator[Layout]:
    """All that OPEN allows, by loops over every number up to the devices."""
    model, num = job.model, job.cluster.num_devices
    widths = range(1, num + 1)
    for tp, cp, pp, dp, ep in itertools.product(widths, widths, widths, widths, widths):
        if tp * cp * pp * dp != num or not cut_divides(job, tp, cp, pp, dp, ep):
            continue
        for micro, vpp in itertools.product(
            range(1, job.global_batch + 1), range(1, model.layers + 1)
        ):
            if job.global_batch % (dp * micro) or (vpp > 1 and model.layers % (pp * vpp)):
                continue
            num_micro = job.global_batch // (dp * micro)
            for schedule, zero, shard, sp, recompute, offload, flash in itertools.product(
                SCHEDULES,
                range(4),
                (0, job.cluster.devices_per_node // tp),
                (False, True),
                RECOMPUTE,
                OFFLOAD,
                (True, False),
            ):
                layout = Layout(
                    tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, micro_batch=micro, num_micro=num_micro,
                    vpp=vpp, schedule=schedule, zero_stage=zero, shard=shard,
                    is_sequence_parallel=sp, recompute=recompute, offload=offload, is_flash=flash,
                )  # fmt: skip
                if methods_make_sense(job, layout):
                    yield layout


def cut_divides(job: TrainingJob, tp: int, cp: int, pp: int, dp: int, ep: int) -> bool:
    model = job.model
    if tp > job.cluster.devices_per_node or model.heads % tp or model.ffn_hidden % tp:
        return False
    if (
        (model.kv_heads % tp and tp % model.kv_heads)
        or model.layers % pp
        or (cp > 1 and job.seq_len % (2 * cp))
    ):
        return False
    if model.experts is None:
        return ep == 1
    return (
        model.experts.num % ep == 0 and (dp * cp) % ep == 0 and model.experts.ffn_hidden % tp == 0
    )


def methods_make_sense(job: TrainingJob, layout: Layout) -> bool:
    copies = layout.dp * layout.cp
    if layout.vpp > 1 and (
        layout.pp == 1 or layout.schedule != "1f1b" or layout.num_micro % layout.pp
    ):
        return False
    if layout.schedule != "1f1b" and layout.pp == 1:
        return False
    if layout.num_micro < {"zb1p": 1, "zb2p": 2, "zbv": 2}.get(layout.schedule, 0) * layout.pp:
        return False
    if layout.schedule == "zbv" and job.model.layers < 2 * layout.pp:
        return False
    if layout.zero_stage and copies == 1:
        return False
    if layout.zero_stage == 2 and layout.pp > 1:
        return False
    if layout.offload in ("all", "nvme") and layout.zero_stage < 3 and copies > 1:
        return False
    if layout.shard and (
        layout.zero_stage != 3 or not 1 < layout.shard < copies or copies % layout.shard
    ):
        return False
    if layout.is_sequence_parallel and layout.tp == 1:
        return False
    return layout.recompute != "selective" or not layout.is_flash


@pytest.mark.parametrize(
    ("model", "per_node", "batch"), [(DENSE, 4, 4), (MIXTURE, 2, 2)], ids=["dense", "mixture"]
)
def test_a_grid_is_what_loops_find(model: Model, per_node: int, batch: int) -> None:
    cluster = small_cluster(num=4, per_node=per_node)
    job = small_job(model, cluster=cluster, global_batch=batch)
    found = layouts_of(Grid(job, OPEN))
    assert len(found) == len(set(found)) == len(Grid(job, OPEN))
    assert set(found) == set(every_layout(job))


def test_pieces_are_bounded_and_hold_everything_once() -> None:
    job = TrainingJob(
        model=find_model("llama3-70b"),
        cluster=parse_cluster("8x8xH100"),
        seq_len=8192,
        global_batch=1024,
    )
    grid = Grid(job, replace(Space(), offload=OFFLOAD))
    sizes = [len(chunk) for chunk in grid.chunks()]
    assert len(sizes) > 1
    assert max(sizes) <= CHUNK_ROWS
    assert sum(sizes) == len(grid)
    ends = grid.pieces()
    assert ends[0][0] == 0
    assert ends[-1][1] == len(grid.cuts["tp"])
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))


def test_pins_are_kept() -> None:
    space = Space(
        tp=(1, 2),
        pp=(2,),
        recompute=("full",),
        schedule=("gpipe",),
        zero_stage=(1,),
        is_sequence_parallel=(False,),
    )
    found = layouts_of(Grid(small_job(), space))
    assert {layout.tp for layout in found} == {1, 2}
    told = {
        (each.recompute, each.schedule, each.zero_stage, each.is_sequence_parallel, each.pp)
        for each in found
    }
    assert told == {("full", "gpipe", 1, False, 2)}


def test_tensor_ranks_leave_a_node_and_devices_idle_only_when_asked() -> None:
    job = small_job(replace(DENSE, kv_heads=8))
    assert max(each.tp for each in layouts_of(Grid(job, Space()))) == 4
    assert max(each.tp for each in layouts_of(Grid(job, Space(spans_nodes=True)))) == 8
    assert {each.num_devices for each in layouts_of(Grid(job, Space()))} == {8}
    # Three stages of two layers: 6 of 8 devices.
    idle = layouts_of(Grid(job, Space(leaves_idle=True)))
    assert {each.num_devices for each in idle} >= {6, 8}
    assert max(each.num_devices for each in idle) == 8


def test_uneven_stages_are_the_frameworks_choice() -> None:
    model = replace(DENSE, layers=61)
    assert {each.pp for each in layouts_of(Grid(small_job(model), Space()))} == {1}
    balanced = layouts_of(Grid(small_job(model, framework=MEGATRON_CORE), Space()))
    assert {each.pp for each in balanced} == {1, 2, 4, 8}
    # Pieces that leave the fullest stage as it is: 8 layers in 2 or 4, not in 3.
    assert {each.vpp for each in balanced if each.pp == 8} == {1, 2, 4}
    assert all(-(-61 // (each.pp * each.vpp)) * each.vpp == -(-61 // each.pp) for each in balanced)


@pytest.mark.parametrize(
    ("layers", "pp", "vpp"), [(61, 16, 1), (61, 16, 2), (126, 16, 4), (80, 4, 5)]
)
def test_pieces_of_stages_have_all_layers(layers: int, pp: int, vpp: int) -> None:
    job = small_job(replace(DENSE, layers=layers), framework=MEGATRON_CORE)
    pieces = layers_by_piece(job, Layout(pp=pp, vpp=vpp))
    assert (len(pieces), sum(pieces)) == (pp * vpp, layers)
    assert pieces[-1] <= max(pieces) <= min(pieces[:-1]) + 1
    columns = Layouts.of([Layout(pp=pp, vpp=vpp)])
    assert max(pieces) * vpp == fullest_stage(job, columns)[0]


def test_selective_recompute_with_one_kernel_is_for_frameworks_that_mean_more_by_it() -> None:
    megatron, titan = (
        layouts_of(Grid(small_job(framework=each), Space())) for each in (MEGATRON, TORCHTITAN)
    )
    assert "selective" not in {each.recompute for each in megatron}
    assert "selective" in {each.recompute for each in titan}


def test_selective_recompute_is_searched_where_it_frees_something_or_is_pinned() -> None:
    dense = layouts_of(Grid(small_job(), Space()))
    assert "selective" not in {each.recompute for each in dense}
    pinned = layouts_of(Grid(small_job(), Space(recompute=("selective",))))
    assert {each.recompute for each in pinned} == {"selective"}
    mixture = TrainingJob(
        model=find_model("mixtral-8x7b"),
        cluster=parse_cluster("1x8xH100"),
        seq_len=4096,
        global_batch=64,
    )
    assert "selective" in {each.recompute for each in layouts_of(Grid(mixture, Space()))}


def test_the_open_space_of_175b_is_larger_than_calculons() -> None:
    job = TrainingJob(
        model=find_model("gpt3-175b"),
        cluster=parse_cluster("128x8xA100"),
        seq_len=2048,
        global_batch=1536,
    )
    assert len(Grid(job, replace(open_space(job), leaves_idle=True))) > 11_700_000


def test_divisors_are_all_of_them() -> None:
    for whole in (1, 2, 36, 97, 96, 1536):
        assert divisors(whole) == [each for each in range(1, whole + 1) if whole % each == 0]


# The search.


@pytest.fixture(scope="module", params=[DENSE, MIXTURE], ids=lambda model: model.name)
def tried(request: pytest.FixtureRequest) -> tuple[TrainingJob, list[tuple[Layout, float, float]]]:
    """A job that some layouts fit, and each layout's step and memory, of one call for all and of
    one for some."""
    job = small_job(request.param, global_batch=4)
    layouts = layouts_of(Grid(job, Space(offload=OFFLOAD)))
    made = estimate(job, Layouts.of(layouts))
    rows = list(zip(layouts, made.step_s.tolist(), made.memory_bytes.tolist(), strict=True))
    for layout, step, memory in rows[::97]:
        one = estimate_one(job, layout)
        assert (step, memory) == (
            pytest.approx(float(one.step_s[0])),
            pytest.approx(float(one.memory_bytes[0])),
        )
    middle = sorted(memory for _, _, memory in rows)[len(rows) // 2]
    return replace(job, cluster=replace(job.cluster, memory_bytes=middle)), rows


def test_the_best_is_the_fastest_that_fits(
    tried: tuple[TrainingJob, list[tuple[Layout, float, float]]],
) -> None:
    job, rows = tried
    found = search(job, Space(offload=OFFLOAD, has_partial_recompute=False))
    fit = [(layout, step) for layout, step, memory in rows if memory <= job.cluster.roomy_bytes]
    assert 0 < len(fit) < len(rows)
    assert found.num_layouts == len(rows)
    assert found.num_fit == len(fit)
    assert sum(found.too_large.values()) == len(rows) - len(fit)
    fastest = min(step for _, step in fit)
    assert fastest <= found.best[0].step_s <= fastest * (1 + SAME)
    steps = dict(fit)
    assert all(each.step_s == pytest.approx(steps[each.layout], rel=1e-9) for each in found.best)
    assert [each.step_s for each in found.best] == sorted(each.step_s for each in found.best)


def test_what_fits_is_not_beaten_in_memory_and_time_by_more_than_the_front(
    tried: tuple[TrainingJob, list[tuple[Layout, float, float]]],
) -> None:
    job, rows = tried
    front = search(job, Space(offload=OFFLOAD, has_partial_recompute=False)).front
    assert [each.step_s for each in front] == sorted(each.step_s for each in front)
    assert [each.memory_bytes for each in front] == sorted(
        (each.memory_bytes for each in front), reverse=True
    )
    slow = search_module.SLOWEST * front[0].step_s
    for layout, step, memory in rows:
        if memory <= job.cluster.roomy_bytes and step <= slow:
            near = 1 + 2 * SAME
            beats_or_ties = any(
                each.step_s <= step * near and each.memory_bytes * search_module.SAVED <= memory
                for each in front
            )
            assert beats_or_ties, layout


def test_the_least_memory_is_the_least(
    tried: tuple[TrainingJob, list[tuple[Layout, float, float]]],
) -> None:
    job, rows = tried
    least = least_memory(job, Space(offload=OFFLOAD))
    assert least is not None
    assert least.memory_bytes == pytest.approx(min(memory for _, _, memory in rows))


def told(found: SearchResult) -> list[tuple[str, float, str]]:
    return [(str(each.layout), each.step_s, each.why) for each in (*found.best, *found.front)]


def test_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job()
    alone = search(job, OPEN)
    original = Grid.pieces
    monkeypatch.setattr(Grid, "pieces", lambda self: original(self, 500))
    in_pieces = search(job, OPEN)
    together = search(job, OPEN, num_workers=2)
    assert len(Grid(job, OPEN).pieces()) > 4
    assert told(alone) == told(in_pieces) == told(together)
    assert alone.too_large == together.too_large
    assert alone.num_fit == together.num_fit


UNGUARDED = """
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.job import TrainingJob
from stepscope.plan.search import search
from stepscope.plan.space import Grid

original = Grid.pieces
Grid.pieces = lambda self: original(self, 500)
job = TrainingJob(
    model=find_model("gpt2-small"), cluster=parse_cluster("1x8xA100"), seq_len=1024, global_batch=16
)
print(search(job, num_workers=2).num_layouts == search(job).num_layouts)
"""


def test_a_script_without_a_guard_may_ask_for_processes(tmp_path: Path) -> None:
    script = tmp_path / "plan.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_variants_collapse_into_the_plainest() -> None:
    base = Layout(tp=2, dp=4, micro_batch=1, num_micro=2, zero_stage=3)
    timed = {
        base: 1.0,
        replace(base, zero_stage=1): 1.0005,
        replace(base, zero_stage=1, cp=2, dp=2, micro_batch=2): 1.0003,
        replace(base, zero_stage=1, recompute="full"): 1.3,
        replace(base, zero_stage=0, recompute="full"): 1.4,
        replace(base, zero_stage=2, recompute="full"): 1.5,
        replace(base, tp=4, dp=2): 1.2,
    }
    rows = search_module._Rows(
        layouts=Layouts.of(timed),
        step_s=np.array([*timed.values()]),
        memory_bytes=np.ones(len(timed)),
    )
    shown = [rows.layouts.layout(place) for place in search_module._shown(rows, 10)]
    assert shown == [list(timed)[place] for place in (1, 6, 3, 4)]
    assert len(search_module._shown(rows, 2)) == 2


def test_a_host_that_cannot_hold_what_is_offloaded_is_a_reason() -> None:
    job = small_job()
    poor = replace(job, cluster=replace(job.cluster, host_memory_bytes=1e6))
    space = Space(offload=("optimizer",))
    assert search(job, space).num_fit > 0
    found = search(poor, space)
    assert found.num_fit == 0
    assert found.too_large[search_module.HOST] > 0
    assert least_memory(poor, space) is None


def test_nothing_to_choose_from_is_not_an_error() -> None:
    found = search(small_job(), Space(tp=(3,)))
    assert found.num_layouts == 0
    assert found.best == ()
    huge = search(small_job(find_model("gpt3-175b")))
    assert huge.num_fit == 0
    assert huge.best == ()


# Why.


def choice(layout: Layout, **times: float) -> Choice:
    return Choice(
        layout=layout,
        step_s=sum(times.values()),
        memory_bytes=1.0,
        tokens_per_s_per_device=1.0,
        mfu=0.5,
        times=times,
        memory={},
    )


def test_why_names_what_grows_most() -> None:
    best = choice(Layout(tp=8), gemm=10.0, bubble=0.2, tensor_comms=1.0, data_comms=0.5)
    slower = choice(Layout(tp=4), gemm=9.9, bubble=1.0, tensor_comms=1.4, data_comms=0.55)
    assert re.fullmatch(r"bubble \+0\.80 s, tensor \w+ \+0\.40 s", why(slower, best))
    assert why(best, best) == "the fastest"
    alike = choice(Layout(tp=2), gemm=10.0, bubble=0.2, tensor_comms=1.01, data_comms=0.5)
    assert mentions(why(alike, best), "as fast")
    assert why(
        choice(Layout(tp=2), gemm=9.0, bubble=0.2, tensor_comms=1.0, data_comms=0.5), best
    ).startswith("faster")


def test_every_choice_says_why_it_loses() -> None:
    found = search(small_job(), OPEN)
    assert found.best[0].why == "the fastest"
    assert all(each.why and each.why != "the fastest" for each in found.best[1:])
    worst = found.best[-1]
    part = max(worst.times, key=lambda name: worst.times[name] - found.best[0].times[name])
    assert worst.why.startswith((PART_WORDS[part], "as fast"))


def test_what_is_alike_is_found_whatever_the_sizes() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.choice([1, 3, 10**7], 500) for _ in range(4)]
    first, index = alike(*columns)
    for column in columns:
        assert (column[first][index] == column).all()
    assert len(first) == len({tuple(row) for row in np.stack(columns, axis=1).tolist()})


def test_a_piece_is_estimated_as_each_of_its_layouts_alone() -> None:
    job = TrainingJob(
        model=find_model("deepseek-v3"), cluster=parse_cluster("8x8xH200"),
        seq_len=4096, global_batch=64,
    )  # fmt: skip
    grid = Grid(job, open_space(job))
    bounds = grid.pieces()
    layouts = grid.piece(*bounds[len(bounds) // 2])
    whole = estimate(job, layouts)
    step, total = (np.broadcast_to(v, len(layouts)) for v in (whole.step_s, whole.memory_bytes))
    for index in np.random.default_rng(1).choice(len(layouts), 15, replace=False):
        alone = estimate(job, layouts.take(np.array([index])))
        assert alone.step_s[0] == pytest.approx(step[index], rel=1e-12)
        assert alone.memory_bytes[0] == pytest.approx(total[index], rel=1e-12)


def test_as_few_layers_are_recomputed_as_make_it_fit() -> None:
    job = TrainingJob(
        model=find_model("llama2-13b"), cluster=parse_cluster("1x8xA100-80GB"),
        seq_len=4096, global_batch=16,
    )  # fmt: skip
    pinned = Space(
        tp=(2,), cp=(1,), pp=(2,), vpp=(1,), dp=(2,), micro_batch=(4,), zero_stage=(1,),
        schedule=("1f1b",), is_sequence_parallel=(True,), recompute=("none", "full"),
    )  # fmt: skip
    best = search(job, pinned).best[0]
    layout = best.layout
    assert layout.recompute == "full"
    assert 0 < layout.recompute_layers < job.model.layers // 2
    assert str(layout).endswith(f"-full{layout.recompute_layers}")
    assert parse_layout(str(layout), job) == layout
    limit = job.cluster.roomy_bytes
    tried = {
        num: estimate_one(job, replace(layout, recompute_layers=num))
        for num in range(1, job.model.layers // 2 + 1)
    }
    fitting = {num: float(each.step_s[0]) for num, each in tried.items()
               if each.memory_bytes[0] <= limit}  # fmt: skip
    assert layout.recompute_layers == min(fitting)
    assert best.step_s == pytest.approx(min(fitting.values()))
    # All of a stage's layers is what `full` has always been.
    whole = estimate_one(job, replace(layout, recompute_layers=0))
    last = tried[job.model.layers // 2]
    assert whole.memory_bytes[0] == pytest.approx(last.memory_bytes[0])
    assert whole.step_s[0] == pytest.approx(last.step_s[0])
    # Who pins it gets all.
    for chosen in search(job, replace(pinned, recompute=("full",))).best:
        assert chosen.layout.recompute_layers == 0


def test_checkpoints_stand_apart_where_nothing_fits_otherwise() -> None:
    """Least is kept near the root of layers x a checkpoint / a whole layer (Chen et al. 2016)."""
    model = replace(find_model("llama3-70b"), vocab=64)
    job = TrainingJob(
        model=model, cluster=parse_cluster("2x8xH100"), seq_len=65536, global_batch=1,
        framework=MEGATRON_CORE,
    )  # fmt: skip
    plain = Layout(tp=8, pp=2, is_sequence_parallel=True, recompute="full")
    made = {every: choice_of(job, replace(plain, recompute_every=every)) for every in (1, 2, 4, 8)}
    kept = {every: choice.memory["activations"] for every, choice in made.items()}
    whole = choice_of(job, replace(plain, recompute="none")).memory["activations"] / 40
    checkpoint = kept[1] / 40 - whole / 40
    assert kept[4] == pytest.approx(10 * checkpoint + 4 * whole, rel=0.01)
    root = (40 * checkpoint / whole) ** 0.5
    assert min(kept, key=lambda every: kept[every]) in {
        every for every in kept if root / 2 <= every <= 2 * root
    }
    assert len({choice.step_s for choice in made.values()}) == 1
    # A device that holds it with checkpoints further apart, and with one for each layer not.
    pins = Space(tp=(8,), pp=(2,), is_sequence_parallel=(True,))
    least = min(made.values(), key=lambda choice: choice.memory_bytes)
    assert least.memory_bytes < made[1].memory_bytes
    memory_bytes = (least.memory_bytes + made[1].memory_bytes) / 2 / USABLE
    tight = replace(job, cluster=replace(job.cluster, memory_bytes=memory_bytes))
    found = search(tight, pins)
    assert found.best[0].layout.recompute_every > 1
    assert parse_layout(str(found.best[0].layout), tight) == found.best[0].layout
    assert not problems(tight, found.best[0].layout)
    # A framework that has one for each layer alone has no such layout.
    alone = replace(tight, framework=replace(MEGATRON_CORE, groups_checkpoints=False))
    assert not search(alone, pins).best
    uneven = replace(plain, recompute_every=3)
    assert any("no checkpoint every 3" in str(fault) for fault in problems(job, uneven))
