"""What would shorten a run as a whole, with its price: what a part of it takes, less what stays
where that is known."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from stepscope.core.numbers import ordinal
from stepscope.core.run import (
    LoaderKnobs,
    RankMetadata,
    RunAdvice,
    RunFacts,
    RunPart,
    RunPrice,
    SlowSteps,
    WholeRun,
    in_ns,
)
from stepscope.rules.run_prices import price_of_kept_workers, price_of_saves

HOURS_A_DAY = 24.0
ONCE = ("start_up", "first_batch", "compile", "warm_up", "shutdown", "recording")
"""What a run pays once, however long it is; what the recording takes is not the job's. Nor does
anything else that was seen once say how often it comes."""
MIN_SHARE = 0.02
"""Share of the run from which a part has advice: as much as a finding must give."""


def advised(run: WholeRun, facts: RunFacts | None) -> WholeRun:
    """Where the run's time went, with advice on it."""
    advice = sorted(_advice(run, facts), key=lambda each: each.likely_seconds, reverse=True)
    return replace(run, advice=tuple(advice))


def _advice(run: WholeRun, facts: RunFacts | None) -> Iterator[RunAdvice]:
    ranks = {} if facts is None else facts.by_rank
    mine = ranks.get(run.rank)
    loader = None if mine is None else mine.loader
    actions = {
        "saves": _saves(len(ranks)),
        "evaluation": "Evaluate less often, or on fewer batches",
        "epoch_start": _epochs(loader),
        "first_batch": "Make the first batch sooner: more workers, data that is local and indexed",
        "compile": "Keep what is compiled between runs (TORCHINDUCTOR_FX_GRAPH_CACHE=1 with a "
        "TORCHINDUCTOR_CACHE_DIR that stays), or compile one block of the model and use it for all "
        "(regional compilation)",
        "gc": "gc.freeze() after the first steps and gc.disable(), with gc.collect() every few "
        "hundred steps",
        "idle": "Find out what the job waits for: no process of it works, and no device",
        "logging": "Log less often, or from another thread; keep numbers on the device until then",
    }
    for part in run.parts:
        if part.what in actions:
            price, action = _price(run, part, mine), actions[part.what]
            if price is not None and part.what == "saves" and not _is_worth(run, price.seconds):
                # What the writer takes from the steps is all that it spares them.
                price, action = None, "Save less often"
            yield from _priced(run, part.what, action, part.seconds, part.num, price)
    for slow in run.stalls:
        yield from _priced(run, "stalls", _slow(slow), slow.seconds, slow.num)


def _price(run: WholeRun, part: RunPart, mine: RankMetadata | None) -> RunPrice | None:
    """None where it is not known how much of the part would stay."""
    if part.what == "saves":
        return price_of_saves(run, part, mine)
    if part.what == "epoch_start" and mine is not None and _starts_anew(mine.loader):
        return price_of_kept_workers(part, mine)
    return None


def _priced(
    run: WholeRun,
    what: str,
    action: str,
    seconds: float,
    num: int | None,
    likely: RunPrice | None = None,
) -> Iterator[RunAdvice]:
    if not _is_worth(run, seconds):
        return
    hours = None
    if what not in ONCE and num != 1:
        hours = HOURS_A_DAY * in_ns(seconds) / (run.dur_ns - run.ns_of(*ONCE))
    if likely is not None and hours is not None:
        likely = replace(likely, hours_a_day=hours * likely.seconds / seconds)
    yield RunAdvice(what=what, action=action, seconds=seconds, hours_a_day=hours, likely=likely)


def _is_worth(run: WholeRun, seconds: float) -> bool:
    return seconds >= MIN_SHARE * run.seconds


def _saves(num_ranks: int) -> str:
    if num_ranks > 1:
        return (
            "Save beside the steps, each rank its own part "
            "(torch.distributed.checkpoint.async_save; the copy stays in the step), or less often"
        )
    return (
        "Save beside the steps (torch.distributed.checkpoint.async_save; the copy stays in the "
        "step), or less often"
    )


def _starts_anew(loader: LoaderKnobs | None) -> bool:
    """Whether each epoch has workers of its own."""
    return bool(loader and loader.num_workers and loader.persistent_workers is not True)


def _epochs(loader: LoaderKnobs | None) -> str:
    if _starts_anew(loader):
        return "Keep the loader's workers from one epoch to the next: persistent_workers=True"
    return "Begin the next epoch's batches before the last one ends, or make epochs longer"


def _slow(slow: SlowSteps) -> str:
    which = "the steps that are slow now and then"
    if slow.every_steps is not None:
        which = f"every {ordinal(slow.every_steps)} step"
    if slow.cause == "input":
        return f"Deepen the loader's prefetch, or even out its batches: {which} waits for input"
    return f"Take out of the loop, or do beside it, what makes {which} slow"
