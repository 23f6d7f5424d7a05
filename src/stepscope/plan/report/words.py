"""A plan in sentences and short figures, the same in the terminal and on the page."""

from __future__ import annotations

from stepscope.plan.contract.plan import Account
from stepscope.plan.job import TrainingJob
from stepscope.plan.ranges import ranges_of
from stepscope.plan.report.account import Plan
from stepscope.report.words import NBSP, fixed, number, percent, plural, scaled

GIB = 2**30
UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def gib(size: float) -> str:
    """Bytes as the memory of devices is stated: 80 GB of an H100 are 80 GiB."""
    return f"{number(size / GIB)}{NBSP}GiB"


def seconds(value: float) -> str:
    if value >= 1:
        return f"{number(value)}{NBSP}s"
    return f"{number(value * 1e3)}{NBSP}ms" if value >= 1e-3 else f"{number(value * 1e6)}{NBSP}us"


def short_count(value: float) -> str:
    """8030261248 as `8.03 B`."""
    return scaled(value, UNITS, NBSP) if value >= UNITS[-1][0] else f"{value:g}"


def tokens_words(tokens: float) -> str:
    return f"{short_count(tokens)} tokens"


def days_words(days: float) -> str:
    if days >= 1:
        return f"{number(days)}{NBSP}days"
    return f"{number(days * 24)}{NBSP}hours"


def hours_words(hours: float) -> str:
    if hours >= 48:
        return f"{number(hours / 24)}{NBSP}days"
    return f"{number(hours)}{NBSP}hours" if hours >= 1 else f"{number(60 * hours)}{NBSP}minutes"


def money(cost: float) -> str:
    """No currency: it is the price's."""
    return fixed(cost, 0) if cost >= 100 else f"{cost:.2f}"


def job_words(job: TrainingJob) -> str:
    model, cluster = job.model, job.cluster
    active = ""
    if model.active_params != model.num_params:
        active = f", {short_count(model.active_params)} of them active"
    batch = f"a batch of {plural(job.global_batch, 'sequence')} of {fixed(job.seq_len, 0)} tokens"
    trained = "adapters alone are trained, " if job.is_adapter else ""
    what = f"{model.name} ({short_count(model.num_params)} parameters{active}) on {cluster.name}"
    return f"{what}: {batch}, {trained}{job.precision}, {job.framework.name}."


def verdict_words(plan: Plan) -> str:
    """The answer in a sentence."""
    job = plan.training
    if plan.best is None:
        pinned = " under what is pinned" if plan.is_pinned else ""
        room = (
            f"{gib(job.cluster.usable_bytes)} that a job can fill of a device's "
            f"{gib(job.cluster.memory_bytes)} are not enough"
        )
        return f"No layout of {job.model.name} fits on {job.cluster.name}{pinned}: {room}."
    best = plan.best
    share = (
        f"{gib(best.memory_bytes)}{memory_range_words(best)} of each device's "
        f"{gib(job.cluster.memory_bytes)}"
    )
    pace = (
        f"{seconds(best.step_s)} a step{range_words(best)}, {number(best.tokens_per_s)} tokens/s, "
        f"{percent(best.mfu)} MFU"
    )
    doubt = ""
    ranges = ranges_of(job)
    if not ranges.is_validated:
        device = job.cluster.device.name
        doubt = f" No measured step of {device} stands behind this."
        if ranges.num_compared:
            steps = plural(ranges.num_compared, "measured step")
            doubt = f" No more than {steps} of {device} could be compared with plans."
    return f"{best.layout}: {pace}, {share}.{doubt}"


def range_words(account: Account) -> str:
    """Words for the range in which a step of such a plan lies in four cases of five."""
    if not account.ranges or "step_s" not in account.ranges:
        return ""
    low, high = account.ranges["step_s"]
    return f" ({seconds(low)} to {seconds(high)})"


def memory_range_words(account: Account) -> str:
    """The same of its memory."""
    if not account.ranges or "memory_bytes" not in account.ranges:
        return ""
    low, high = account.ranges["memory_bytes"]
    return f" ({gib(low)} to {gib(high)})"


def asked_words(account: Account) -> str:
    """The layout that was asked about, beside the best."""
    pace = (
        f"{seconds(account.step_s)} a step, {percent(account.mfu)} MFU, {gib(account.memory_bytes)}"
    )
    if account.why:
        return f"{account.layout}: {pace}; {account.why}."
    return f"{account.layout}: {pace}."


def headline_words(plan: Plan) -> str:
    """The answer for a page that has the figures below."""
    best = plan.explained or plan.best
    if best is None:
        return verdict_words(plan)
    if not best.fits:
        return f"{best.layout} does not fit"
    return f"{best.layout}: {seconds(best.step_s)} a step"


def count_words(plan: Plan) -> str:
    counts = plan.counts
    if not counts:
        return ""
    words = ", ".join(
        f"{fixed(count, 0)} {name.replace('_', ' ')}" for name, count in counts.items()
    )
    return words if plan.search_s is None else f"{words}; {plan.search_s:.1f}{NBSP}s"


def trust_words(plan: Plan) -> list[str]:
    device = plan.training.cluster.device.name
    if plan.judged_by.kind == "calibrated":
        first = f"Rates of {device} as measured: {plan.judged_by.hardware}."
    else:
        usual = (
            f"Rates of {device} from its datasheet, with efficiencies that are usual on such "
            "devices"
        )
        first = f"{usual}; `stepscope calibrate` measures yours."
    mfu = "MFU counts every pair of tokens in attention and nothing that is recomputed."
    return [first, mfu, f"{ranges_of(plan.training).words}: docs/planner.md."]
