"""Every way to cut a job that divides what it cuts, as columns, a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layouts
from stepscope.plan.parameters import interleaves, is_selective_cheap

Columns = dict[str, npt.NDArray[np.int64]]
Mask = npt.NDArray[np.bool_]

CHUNK_ROWS = 40_000
"""Columns of so many rows stay in a core's own cache."""
UNEVEN_PIECES = (2, 3, 4, 6, 8)
"""Pieces of a stage that are tried where stages may differ, beside those that divide the layers."""
A_NODE = -1
"""Mark in a column of shards: as many ranks as a node has, which depends on the tensor width."""
_ONE_F_ONE_B, _GPIPE, _ZB1P, _ZB2P, _ZBV = range(len(SCHEDULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a search may choose from.

    None is every value that makes sense; a tuple pins or restricts.
    """

    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    vpp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    zero_stage: tuple[int, ...] | None = None
    """None: those that the framework has; so for the sequence, context ranks and stages."""
    shard: tuple[int, ...] | None = None
    """0 is all data ranks. None is all of them or, under ZeRO-3, those of a node."""
    is_sequence_parallel: tuple[bool, ...] | None = None
    recompute: tuple[str, ...] = RECOMPUTE
    has_partial_recompute: bool = True
    """Whether, where nothing and `full` may be chosen, it may be of as few layers as make the
    layout fit."""
    recompute_every: tuple[int, ...] = (1,)
    """Layers from one checkpoint to the next where all are recomputed."""
    repeats_attention: bool = False
    """Whether selective recompute is tried too where it only runs one kernel again and frees
    nothing; who pins it gets it."""
    schedule: tuple[str, ...] | None = None
    """None: those that the framework has."""
    offload: tuple[str, ...] = ("none",)
    is_flash: tuple[bool, ...] = (True,)
    spans_nodes: bool = False
    """Whether tensor ranks may be more than a node has."""
    leaves_idle: bool = False
    """Whether layouts may use fewer devices than there are."""

    @property
    def is_recompute_free(self) -> bool:
        """Whether some of the layers may be recomputed: who pins `full` gets all of them."""
        return self.has_partial_recompute and {"none", "full"} <= set(self.recompute)


def open_space(job: TrainingJob) -> Space:
    """Everything that can be chosen.

    Offload, attention with and without a kernel of its own, every shard, tensor ranks over nodes.
    """
    shards = (0, *divisors(job.cluster.num_devices)[1:-1])
    every: dict[str, Any] = {
        "zero_stage": (0, 1, 2, 3),
        "is_sequence_parallel": (False, True),
        "schedule": SCHEDULES,
    }
    return Space(
        shard=shards,
        **every,
        repeats_attention=True,
        offload=OFFLOAD,
        is_flash=(True, False),
        spans_nodes=True,
    )


def divisors(whole: int) -> list[int]:
    """Divisors in order."""
    small = [divisor for divisor in range(1, math.isqrt(whole) + 1) if whole % divisor == 0]
    return small + [whole // divisor for divisor in reversed(small) if divisor * divisor != whole]


class Grid:
    """A space over a job.

    `cuts` divide devices and batch; each combines with every pipeline, shard and method it allows.
    The three are tables of their own, so that how many layouts there are is known before one is
    made.
    """

    def __init__(self, job: TrainingJob, space: Space) -> None:
        self.job, self.space = job, space
        self.dropped: dict[str, int] = {}
        """Cuts that fill the devices and divide the batch but are left out, by reason."""
        self.cuts = self._cuts()
        # There is no such kernel for what came before Ampere, which has no bf16 either.
        has_flash = "bf16" in job.cluster.peak_flops
        sequence = space.is_sequence_parallel
        if sequence is None:
            sequence = (False, True) if job.framework.has_sequence else (False,)
        schedules, zero_stages = space.schedule, space.zero_stage
        if schedules is None:
            schedules = job.framework.schedules
        if zero_stages is None:
            # One rank alone has nobody to share with, whatever the framework.
            zero_stages = tuple(sorted({0, *job.framework.zero_stages}))
        self._pipes = _crossed(
            {
                "schedule": _codes(schedules, SCHEDULES),
                "vpp": space.vpp or self._pieces(),
            }
        )
        self._shards = _crossed({"zero_stage": zero_stages, "shard": space.shard or (0, A_NODE)})
        self._methods = _crossed(
            {
                "is_sequence_parallel": [int(is_split) for is_split in sequence],
                "recompute": _codes(space.recompute, RECOMPUTE),
                "recompute_every": space.recompute_every,
                "offload": _codes(space.offload, OFFLOAD),
                "is_flash": [
                    int(is_flash) for is_flash in space.is_flash if not is_flash or has_flash
                ]
                or [0],
            }
        )

    def __len__(self) -> int:
        """Layouts in all."""
        return int(self._sizes.sum())

    @cached_property
    def _masks(self) -> tuple[Mask, Mask]:
        """Masks of the pipelines that each cut may have, and of the shards with their methods."""
        cuts = {name: column[:, None] for name, column in self.cuts.items()}
        sharded, methods = self._shard_mask(cuts), self._method_mask(cuts)
        allowed = sharded[:, :, None] & methods[:, None, :] & self._offload_mask(cuts)
        return self._pipe_mask(cuts), allowed

    def _offload_mask(self, cuts: Mapping[str, Any]) -> Mask:
        """Weights live on the host only where ranks share them (ZeRO-3), or where there is one
        rank; that is under ZeRO only where the framework offloads by it."""
        stage = self._shards["zero_stage"][None, :, None]
        offload = self._methods["offload"][None, None, :]
        alone = (cuts["dp"] * cuts["cp"] == 1)[:, :, None]
        is_out = offload > 0
        may = (offload < OFFLOAD.index("all")) | (stage == 3)
        if not self.job.framework.shards_alone:
            return np.asarray((may | alone) & ~(alone & (stage > 0)), dtype=bool)
        return np.asarray(may & np.where(is_out, stage > 0, ~alone | (stage == 0)), dtype=bool)

    @cached_property
    def _sizes(self) -> npt.NDArray[np.int64]:
        pipes, allowed = self._masks
        return np.asarray(pipes.sum(axis=1) * allowed.sum(axis=(1, 2)), dtype=np.int64)

    def pieces(self, most_rows: int = CHUNK_ROWS) -> list[tuple[int, int]]:
        """Runs of cuts, each of at most so many layouts, or of one cut."""
        bounds, start, rows = [], 0, 0
        for index, size in enumerate(self._sizes.tolist()):
            if rows and rows + size > most_rows:
                bounds.append((start, index))
                start, rows = index, 0
            rows += size
        if rows:
            bounds.append((start, len(self._sizes)))
        return bounds

    def chunks(self) -> Iterator[Layouts]:
        """All of it, a piece at a time."""
        return (self.piece(start, stop) for start, stop in self.pieces())

    def piece(self, start: int, stop: int) -> Layouts:
        """The layouts of a run of cuts."""
        pipes, allowed = (mask[start:stop] for mask in self._masks)
        valid = pipes[:, :, None, None] & allowed[:, None, :, :]
        # Indices are taken apart by hand: np.nonzero of four axes takes three times as long.
        rest, method = np.divmod(np.flatnonzero(valid).astype(np.int32), np.int32(valid.shape[3]))
        rest, shard = np.divmod(rest, np.int32(valid.shape[2]))
        cut, pipe = np.divmod(rest, np.int32(valid.shape[1]))
        columns = {name: column[start:stop][cut] for name, column in self.cuts.items()}
        for table, indices in ((self._pipes, pipe), (self._shards, shard), (self._methods, method)):
            columns |= {name: column[indices] for name, column in table.items()}
        columns["recompute_layers"] = np.zeros(len(cut), dtype=np.int64)
        columns["shard"] = np.where(
            columns["shard"] == A_NODE, self._in_node(columns["tp"]), columns["shard"]
        )
        return Layouts(**columns)

    def _in_node(self, tp: Any) -> Any:
        """Data ranks of a node."""
        return np.maximum(self.job.cluster.devices_per_node // tp, 1)

    # What goes with what.

    def _cuts(self) -> Columns:
        job, space, model = self.job, self.space, self.job.model
        num, batch = job.cluster.num_devices, job.global_batch
        most_tp = num if space.spans_nodes else job.cluster.devices_per_node
        table = _crossed(
            {
                "tp": space.tp or self._tensor_widths(most_tp),
                "cp": space.cp
                or (self._widths(job.seq_len, num) if job.framework.has_context else [1]),
                "ep": space.ep
                or (
                    divisors(model.experts.num)
                    if model.experts is not None and job.framework.cuts_layers
                    else [1]
                ),
                "dp": space.dp or [dp for dp in divisors(batch) if dp <= num],
                "pp": space.pp
                or (
                    self._widths(model.layers, min(num, model.layers))
                    if job.framework.has_stages
                    else [1]
                ),
            }
        )
        used = table["tp"] * table["cp"] * table["dp"] * table["pp"]
        table = _kept(table, (used <= num) & (2 * used > num) if space.leaves_idle else used == num)
        for reason, is_right in self._rules(table):
            self.dropped[reason] = int((~is_right).sum())
        table = _kept(
            table, np.logical_and.reduce([is_right for _, is_right in self._rules(table)])
        )
        table = _joined(
            table, {"micro_batch": np.array(space.micro_batch or divisors(batch), dtype=np.int64)}
        )
        table = _kept(table, batch % (table["dp"] * table["micro_batch"]) == 0)
        table["num_micro"] = batch // (table["dp"] * table["micro_batch"])
        # Cuts whose layers take the same time stand together.
        order = np.lexsort([table[name] for name in ("pp", "dp", "micro_batch", "ep", "cp", "tp")])
        return {name: column[order] for name, column in table.items()}

    def _tensor_widths(self, most: int) -> list[int]:
        if not self.job.framework.cuts_layers:
            return [1]
        return [tp for tp in self._widths(self.job.model.heads, most) if self._fills_nodes(tp)]

    def _widths(self, whole: int, most: int) -> list[int]:
        """What may be tried to cut `whole`.

        What divides the devices or, where some may be idle, what divides `whole` too.
        """
        widths = set(divisors(self.job.cluster.num_devices))
        if self.space.leaves_idle:
            widths |= set(divisors(whole))
        return sorted(width for width in widths if width <= most)

    def _fills_nodes(self, tp: int) -> bool:
        """Whether no tensor group is cut by the end of a node."""
        per_node = self.job.cluster.devices_per_node
        return per_node % tp == 0 or tp % per_node == 0

    def _rules(self, cuts: Mapping[str, Any]) -> Iterator[tuple[str, Mask]]:
        model, tp, cp, ep, pp = self.job.model, cuts["tp"], cuts["cp"], cuts["ep"], cuts["pp"]
        yield "heads by tensor ranks", model.heads % tp == 0
        yield (
            "key-value heads by tensor ranks",
            (model.kv_heads % tp == 0) | (tp % model.kv_heads == 0),
        )
        yield "the MLP's width by tensor ranks", model.ffn_hidden % tp == 0
        yield (
            "layers by stages",
            ((model.layers % pp == 0) | self.job.framework.balances_stages) & (pp <= model.layers),
        )
        # Rank i takes the i-th piece from both ends, so that all have as many pairs.
        yield "tokens by context ranks", (cp == 1) | (self.job.seq_len % (2 * cp) == 0)
        if model.experts is not None:
            yield "experts' width by tensor ranks", model.experts.ffn_hidden % tp == 0
            yield (
                "data ranks by expert ranks",
                (cuts["dp"] * cp % ep == 0) & (model.experts.num % ep == 0),
            )
        else:
            yield "expert ranks without experts", ep == 1

    def _pipe_mask(self, cuts: Mapping[str, Any]) -> Mask:
        """Mask of the schedules that a cut may have, in how many pieces a stage."""
        schedule, vpp = self._pipes["schedule"], self._pipes["vpp"]
        pp, num_micro, layers = cuts["pp"], cuts["num_micro"], self.job.model.layers
        interleaved = (
            (schedule == _ONE_F_ONE_B)
            & (pp > 1)
            & (num_micro % pp == 0)
            & interleaves(self.job, pp, vpp)
        )
        plain = (schedule == _ONE_F_ONE_B) | (pp > 1)
        # With fewer micro-batches these have the bubbles that they are made to fill; zbv has two
        # pieces to a stage.
        enough = np.choose(schedule, (1, 1, 1, 2, 2)) * pp
        plain &= (schedule <= _GPIPE) | (num_micro >= enough)
        plain &= (schedule != _ZBV) | (layers >= 2 * pp)
        return np.asarray(np.where(vpp == 1, plain, interleaved), dtype=bool)

    def _pieces(self) -> list[int]:
        """Pieces of a stage that are tried."""
        pieces = set(divisors(self.job.model.layers))
        return sorted(pieces | set(UNEVEN_PIECES if self.job.framework.balances_stages else ()))

    def _shard_mask(self, cuts: Mapping[str, Any]) -> Mask:
        """Mask of the shards that a cut may have."""
        stage, shard = self._shards["zero_stage"], self._shards["shard"]
        copies = cuts["dp"] * cuts["cp"]
        width = np.where(shard == A_NODE, self._in_node(cuts["tp"]), shard)
        framework = self.job.framework
        # Stages would reduce sharded gradients after each micro-batch.
        allowed = (stage != 2) | (cuts["pp"] == 1)
        if self.space.zero_stage is None:
            has = np.isin(stage, framework.zero_stages)
            allowed &= has | ((copies == 1) & (stage == 0))
            allowed &= np.isin(stage, framework.staged_zero_stages) | (cuts["pp"] == 1)
        part = (
            (stage >= np.where(shard == A_NODE, 3, 1))
            & (width > 1)
            & (width < copies)
            & (copies % np.maximum(width, 1) == 0)
        )
        return np.asarray(allowed & ((shard == 0) | part), dtype=bool)

    def _method_mask(self, cuts: Mapping[str, Any]) -> Mask:
        """Whether to split the sequence, and what to recompute."""
        methods, framework = self._methods, self.job.framework
        divides = (cuts["tp"] > 1) & (self.job.seq_len % (cuts["tp"] * cuts["cp"]) == 0)
        split = (methods["is_sequence_parallel"] == 0) | divides
        if framework.shares_sequence and self.space.is_sequence_parallel is None:
            split &= (methods["is_sequence_parallel"] == 1) | (cuts["tp"] == 1)
        has_selective = framework.selective_is_ops or is_selective_cheap(self.job)
        has_selective |= self.space.repeats_attention & framework.selective_is_cheap
        has_selective |= self.space.recompute == ("selective",)
        # What selective recompute leaves out of memory, one kernel for attention never puts there.
        useful = (methods["recompute"] != 1) | (methods["is_flash"] == 0) | has_selective
        every, in_stage = methods["recompute_every"], self.job.model.layers // cuts["pp"]
        groups = (methods["recompute"] == 2) & (in_stage >= every) & (in_stage % every == 0)
        return np.asarray(split & useful & ((every == 1) | groups), dtype=bool)


def _codes(words: Sequence[str], all_words: Sequence[str]) -> list[int]:
    return [all_words.index(word) for word in words]


def _crossed(axes: Mapping[str, Sequence[int]]) -> Columns:
    """Every combination."""
    grids = np.meshgrid(
        *(np.array(values, dtype=np.int64) for values in axes.values()), indexing="ij"
    )
    return {name: grid.ravel() for name, grid in zip(axes, grids, strict=True)}


def _joined(table: Columns, other: Columns) -> Columns:
    """Every row of one with every row of the other."""
    mine, others = len(next(iter(table.values()))), len(next(iter(other.values())))
    joined = {name: np.repeat(column, others) for name, column in table.items()}
    return joined | {name: np.tile(column, mine) for name, column in other.items()}


def _kept(table: Columns, mask: Mask) -> Columns:
    return {name: column[mask] for name, column in table.items()}
