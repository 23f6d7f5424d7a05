"""How a model is cut over devices, one layout or a million of them as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.core.codec import Count

Ints = npt.NDArray[np.int64]

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "zb1p", "zb2p", "zbv")
"""Schedules; with `vpp` over 1, 1f1b is interleaved."""
OFFLOAD = ("none", "optimizer", "all", "nvme")
"""Ways to offload to the host: the optimizer's states, with gradients, or weights too; all of it to
its disks."""
TO_HOST = OFFLOAD[:3]
FEW = 64
"""Layouts below which nothing is won by computing those once that are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to cut the job.

    Devices: tp x cp x pp x dp; the batch: dp x micro_batch x num_micro.
    """

    tp: Count = 1
    pp: Count = 1
    vpp: Count = 1
    dp: Count = 1
    cp: Count = 1
    ep: Count = 1
    """Experts are spread over so many ranks of the data and context width."""
    micro_batch: Count = 1
    num_micro: Count = 1
    """Micro-batches of a step, on each data rank."""
    zero_stage: Count = 0
    """0 nothing is sharded over data ranks, 1 the optimizer, 2 gradients too,
    3 weights too (FSDP)."""
    shard: Count = 0
    """Ranks that share one copy of the weights (HSDP); 0 is all of them."""
    is_sequence_parallel: bool = False
    recompute: str = "none"
    recompute_layers: Count = 0
    """Layers of each stage that `full` recomputes; 0 is all of them."""
    recompute_every: Count = 1
    """Layers from one checkpoint to the next, for `full` in all layers."""
    schedule: str = "1f1b"
    offload: str = "none"
    is_flash: bool = True

    @property
    def num_devices(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def global_batch(self) -> int:
        return self.dp * self.micro_batch * self.num_micro

    def __str__(self) -> str:
        words = [f"tp{self.tp}"]
        if self.cp > 1:
            words.append(f"cp{self.cp}")
        words.append(f"pp{self.pp}" + (f"v{self.vpp}" if self.vpp > 1 else ""))
        words.append(f"dp{self.dp}")
        if self.ep > 1:
            words.append(f"ep{self.ep}")
        words.append(f"mb{self.micro_batch}")
        if self.zero_stage:
            words.append(
                f"z{self.zero_stage}"
                + (f"/{self.shard}" if 0 < self.shard < self.dp * self.cp else "")
            )
        if self.is_sequence_parallel:
            words.append("sp")
        if self.recompute != "none":
            some = str(self.recompute_layers) if self.recompute_layers else ""
            words.append(self.recompute + some)
        if self.recompute_every > 1:
            words.append(f"every{self.recompute_every}")
        if self.schedule != "1f1b":
            words.append(self.schedule)
        if self.offload != "none":
            words.append(f"offload-{self.offload}")
        if not self.is_flash:
            words.append("no-flash")
        return "-".join(words)


_CODED = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Many layouts: a column for each field of Layout, words as their index in the lists above."""

    tp: Ints
    pp: Ints
    vpp: Ints
    dp: Ints
    cp: Ints
    ep: Ints
    micro_batch: Ints
    num_micro: Ints
    zero_stage: Ints
    shard: Ints
    is_sequence_parallel: Ints
    recompute: Ints
    recompute_layers: Ints
    recompute_every: Ints
    schedule: Ints
    offload: Ints
    is_flash: Ints

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def shard_width(self) -> Ints:
        """Ranks over which states are sharded.

        Those of the data and the context width, which hold the same weights.
        """
        copies = self.dp * self.cp
        return np.where(self.shard > 0, np.minimum(self.shard, copies), copies)

    def take(self, selection: Any) -> Layouts:
        """Some of them, by index or by mask."""
        return Layouts(
            **{field.name: getattr(self, field.name)[selection] for field in fields(self)}
        )

    def changed(self, **columns: Ints) -> Layouts:
        """The same with other columns."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Layouts(**(values | columns))

    def layout(self, index: int) -> Layout:
        values: dict[str, Any] = {}
        for field in fields(self):
            value = int(getattr(self, field.name)[index])
            values[field.name] = _CODED[field.name][value] if field.name in _CODED else value
        for name in ("is_sequence_parallel", "is_flash"):
            values[name] = bool(values[name])
        return Layout(**values)

    @staticmethod
    def of(layouts: Iterable[Layout]) -> Layouts:
        columns: dict[str, list[int]] = {field.name: [] for field in fields(Layouts)}
        for layout in layouts:
            for name, column in columns.items():
                value = getattr(layout, name)
                column.append(_CODED[name].index(value) if name in _CODED else int(value))
        return Layouts(
            **{name: np.array(column, dtype=np.int64) for name, column in columns.items()}
        )


def alike(*columns: Ints) -> tuple[Ints, Ints]:
    """The first of each combination of values, and for every row the index of its own."""
    _, first, index = np.unique(mixed_key(*columns), return_index=True, return_inverse=True)
    return first, index


def mixed_key(*columns: Ints) -> Ints:
    """One number for each combination of values."""
    key: Ints = np.zeros(len(columns[0]), dtype=np.int64)
    num_keys = 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        if num_keys * width >= 2**62:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            num_keys = len(key)
        key = key * width + column
        num_keys *= width
    return key
