"""What a user says of a job that has a log and no trace: its devices, and the model it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.additions import work_in_words
from stepscope.cli.options import int_in_range
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.core.peak import GivenWork

MAX_PLAUSIBLE_TOKENS = 1 << 40
"""Tokens of a sequence, and sequences of a step: more is a slip of the keyboard."""
_whole = int_in_range("a whole number above 0", most=MAX_PLAUSIBLE_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    devices: str | None = declare.option("--devices CLUSTER", "8x8xH100, 64xA100-40GB, or H100")
    model: str | None = declare.option(
        "--model MODEL", "a name, a config.json, or a size such as 10b"
    )
    seq: int | None = declare.option("--seq N", "tokens of a sequence", _whole)
    global_batch: int | None = declare.option("--global-batch N", "sequences of a step", _whole)


def work_of(options: WorkOptions) -> GivenWork | None:
    """The dense peak of 16 bits, and what a step's FLOPs are; None where nothing was given."""
    of_model = {
        "--model": options.model,
        "--seq": options.seq,
        "--global-batch": options.global_batch,
    }
    given = [name for name, value in of_model.items() if value is not None]
    if options.devices is None and not given:
        return None

    missing = [name for name in of_model if given and name not in given]
    if options.devices is None or missing:
        needed = " and ".join(([] if options.devices else ["--devices"]) + missing)
        example = "--devices 1x8xH100 --model llama3-8b --seq 8192 --global-batch 64"
        raise UsageError(f"{needed} must be given too, as in: {example}")
    return work_in_words().work_of(
        options.devices, options.model, options.seq, options.global_batch
    )
