"""The step that runs: what was read of it so far, until it becomes a row."""

from __future__ import annotations

from stepscope.capture.passes import Passes
from stepscope.capture.writer import Row


class RunningStep:
    """Sums of one step, in nanoseconds."""

    # Touched by every step: see Session.
    __slots__ = (
        *("comms", "fetched_ns", "gc_ns", "log_ns", "num_batches", "num_evals", "optimizer_ns"),
        *("passes", "save_ns", "wait_cpu_ns", "wait_ns"),
    )

    def __init__(self) -> None:
        self.passes, self.comms = Passes(), Passes()
        self.clear()

    def clear(self) -> None:
        """The next step begins."""
        self.wait_ns = self.optimizer_ns = self.save_ns = self.gc_ns = self.num_batches = 0
        self.num_evals = self.log_ns = 0
        self.wait_cpu_ns: int | None = 0
        self.fetched_ns = 0
        """When its first batch was asked for."""
        self.passes.clear()
        self.comms.clear()

    def passed(self, begun: int, ended: int) -> None:
        self.passes.add(begun, ended)
        if self.comms:
            self.comms.drop_since(begun)

    def waited(self, begun: int, ended: int, own_ns: int | None) -> None:
        """Count the wait for a batch: `own_ns` of it on a core, less than 0 where that is not
        known. None is an epoch's end, which brings no batch."""
        self.wait_ns += ended - begun
        if not self.fetched_ns:
            self.fetched_ns = begun
        if own_ns is not None:
            self.num_batches += 1
            so_far = self.wait_cpu_ns
            self.wait_cpu_ns = None if own_ns < 0 or so_far is None else so_far + own_ns

    def row(self, step: int, now: int, last_ns: int, state: int) -> Row:
        """Row of the step as it ends; the device's times come later."""
        wait, backward = (self.wait_ns, self.num_batches), self.passes.fold()
        spent = self.optimizer_ns, self.save_ns, self.gc_ns
        rest = state, self.num_evals, self.wait_cpu_ns, None, self.comms.fold()[0], self.log_ns
        between = max(self.fetched_ns - last_ns, 0) if self.fetched_ns else None
        return [step, now, now - last_ns, None, *wait, *backward, *spent, *rest, between]
