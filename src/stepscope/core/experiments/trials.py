"""A trial: the user's command run once for real, for a short while, with no profiler attached.

A field is None when it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

Value = bool | int | float | str


class Change(Struct, frozen=True, kw_only=True):
    """How a trial differs from the command as it was given."""

    environment: Mapping[str, str] = field(default_factory=dict)
    knobs: Mapping[str, Value] = field(default_factory=dict)
    """Set inside the job through the capture's hooks; names are those of
    protocol.settings.SETTINGS."""
    arguments: tuple[str, ...] = ()
    """Words put at the end of the command."""
    raised: tuple[str, ...] = ()
    """Knobs of these that only go up: a job that has as much already keeps what it has."""

    @property
    def is_none(self) -> bool:
        return not (self.environment or self.knobs or self.arguments)


class Setup(Struct, frozen=True, kw_only=True):
    """What the two sides of an experiment must have in common."""

    world_size: int | None = None
    batch_size: int | None = None
    """Batch size of the DataLoader that feeds the steps."""
    num_batches: float | None = None
    """Batches a step, on one rank."""
    seed: int | None = None
    """torch.initial_seed() at the first step; None where it was never set."""
    data: str | None = None
    """A digest of the first batches that the loader gave."""
    ends_with: str | None = None
    """What a step ends with, in words: where no optimizer is seen to step, backward passes are
    timed."""
    num_parameters: int | None = None
    model: str | None = None
    dataset: str | None = None
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> float | None:
        """Samples a step, on all ranks."""
        if self.batch_size is None or self.num_batches is None:
            return None
        return self.batch_size * self.num_batches * (self.world_size or 1)


class NumericRow(Struct, frozen=True, kw_only=True):
    """What one step computed, on the first rank."""

    step: int
    loss: float | None
    grad_norm: float | None
    """Norm of all gradients together, just before the optimizer stepped."""
    parameters: str | None
    """A digest of every parameter's bits after the step; None where it was not taken."""
    parameter_norm: float | None


class StepLoss(Struct, frozen=True, kw_only=True):
    """The loss of one step: the mean over its backward passes, and over the ranks that have one."""

    step: int
    """Number as the run folder counts: the first optimizer step is number 0."""
    loss: float
    """NaN or infinite where that of one pass or rank is."""


class Trial(Struct, frozen=True, kw_only=True):
    """One run of the command."""

    folder: str
    change: Change
    exit_code: int
    step_ns: tuple[int, ...]
    """The usual timed steps in order, warm-up left out, of the rank whose pace is the median; empty
    when none was timed."""
    wall_s: float
    irregular_step_ns: float = 0.0
    """What steps of another kind (with a save, an evaluation) among those timed add to the mean
    step."""
    on_device: bool = False
    """Whether the device's own clock timed the steps."""
    is_cut: bool = False
    """Whether we ended the job after the steps that were asked for."""
    is_timed_out: bool = False
    is_out_of_memory: bool = False
    is_killed: bool = False
    """Whether a process of it was killed from outside and nothing says why: that memory ran out is
    a guess then."""
    setup: Setup = field(default_factory=Setup)
    taken: Mapping[str, int] = field(default_factory=dict)
    """Number of objects that each knob of the change was set on: 0 says that it never took hold."""
    losses: tuple[StepLoss, ...] = ()
    """Losses by step, from the first; empty where no backward pass started from one number."""
    numerics: tuple[NumericRow, ...] = ()
    tail: str = ""
    """The last lines that the job wrote to stderr."""
    notes: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether it gave steps and ended well, or was ended by us."""
        return bool(self.step_ns) and (self.is_cut or self.exit_code == 0)
