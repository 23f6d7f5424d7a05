"""Loaders that are begun, with what the first batch of each took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.capture.counters.torch_devices import DynamoCounters
from stepscope.protocol.run_folder import STEP_COLUMNS

MAX_KNOWN = 1_000
"""Loaders told apart: a job that makes new ones all the time does not make us grow."""


class Epochs:
    """Each is told of once its first batch is there. Before the first step they are added up."""

    def __init__(self) -> None:
        self.is_pending = False
        """Whether the next wait is for a first batch."""
        self.tell: Callable[..., None] | None = None
        """Writes it down; there from the first step's end on."""
        self._first: dict[str, Any] = {}
        """Loaders begun before this one: when the first was, what iter() took in all, which was the
        last."""
        self._numbers: dict[int, int] = {}
        self._event: dict[str, Any] = {}

    def begin(self, loader: object, begun: int, ended: int, step: int) -> None:
        self.end()
        if len(self._numbers) < MAX_KNOWN:
            self._numbers.setdefault(id(loader), len(self._numbers))
        number = self._numbers.get(id(loader))
        self._event = {"at_ns": ended, "dur_ns": ended - begun, "step": step, "loader": number}
        self.is_pending = True

    def took_first(self, dur_ns: int) -> None:
        """Note that its first batch is there."""
        self._event["wait_ns"] = dur_ns
        self.end()

    def end(self) -> None:
        """Nothing more is known of it."""
        event, self._event, self.is_pending = self._event, {}, False
        if event and self.tell is not None and event["step"]:
            self.tell("epoch", **event)
        elif event:
            iter_ns = event["dur_ns"]
            self._first.setdefault("begun_ns", event["at_ns"] - iter_ns)
            self._first["iter_ns"] = self._first.get("iter_ns", 0) + iter_ns
            self._first["loader"] = event["loader"]

    def first_step(self, row: list[Any]) -> dict[str, Any]:
        """What RUN/rank-N/rank.json has of the step that is no row, for nobody saw it begin."""
        self.end()
        counted = dict(zip(STEP_COLUMNS, row, strict=True))
        for name in ("step", "dur_ns", "device_ns", "state"):
            del counted[name]
        return counted | self._first | DynamoCounters().take()
