"""The run as it was recorded: its command, its steps without a profiler, and what it was set to."""

from __future__ import annotations

from stepscope.core.run import DeviceSample, RankMetadata, RunFacts, UnprofiledSteps
from stepscope.report.document.blocks import Facts, Section
from stepscope.report.words import ms, percent, plural, shorten

MAX_WORDS = 200


def run_section(run: RunFacts) -> Section:
    """A few lines: the numbers are the first timed rank's."""
    rows = [("command", shorten(" ".join(run.command), MAX_WORDS))] if run.command else []
    if run.exit_code is not None:
        rows.append(("ended", "well" if run.exit_code == 0 else f"with exit code {run.exit_code}"))
    timed = [rank for rank in run.ranks if rank.steps is not None]
    if timed:
        rows += _steps(timed[0])
    for rank in run.ranks[:1]:
        rows += _set_up(rank)
    aside = "steps timed with no profiler attached"
    return Section(title="Run", aside=aside, blocks=(Facts(tuple(rows)),), is_folded=True)


def _steps(rank: RankMetadata) -> list[tuple[str, str]]:
    steps = rank.steps
    assert steps is not None
    spread = f"{ms(steps.low_ns)} to {ms(steps.high_ns)}"
    words = (
        f"{ms(steps.step_ns)} over {plural(steps.num, 'step')} ({spread}), the slowest "
        f"{ms(steps.slowest_ns)}"
    )
    if steps.num_left_out:
        words += f"; {steps.num_left_out} with a save or an evaluation left out"
    shares = [f"{percent(share)} {where}" for where, share in _host_shares(steps)]
    rows = [("step", words), ("host", ", ".join(shares))]
    if steps.num_backwards is not None and steps.num_backwards >= 1.5:
        rows.append(("accumulation", f"{steps.num_backwards:.3g} backward passes a step"))
    return rows


def _host_shares(steps: UnprofiledSteps) -> list[tuple[str, float]]:
    """Parts of a step by the host's clock, which may be ahead of the device's."""
    whole = max(steps.dur_ns or steps.step_ns, 1)
    parts = {
        "in the loader": steps.wait_ns,
        "in backward": steps.backward_ns,
        "in the optimizer": steps.optimizer_ns,
    }
    measured = {where: ns for where, ns in parts.items() if ns is not None}
    if sum(measured.values()) > whole and "in backward" in measured:
        # Only an optimizer that steps as gradients come is in two of them.
        own = measured["in backward"] - measured.get("in the optimizer", 0)
        measured["in backward"] = max(own, 0)
    return [(where, ns / whole) for where, ns in measured.items()]


def _set_up(rank: RankMetadata) -> list[tuple[str, str]]:
    rows = []
    if rank.model is not None and rank.num_parameters is not None:
        rows.append(("model", f"{shorten(rank.model, 40)}, {rank.num_parameters:,} parameters"))
    if rank.optimizers:
        rows.append(("optimizer", shorten(", ".join(rank.optimizers), 60)))
    if rank.loader is not None:
        knobs = rank.loader
        settings = [
            ("num_workers", knobs.num_workers),
            ("pin_memory", knobs.pin_memory),
            ("batch_size", knobs.batch_size),
        ]
        rows.append(
            (
                "loader",
                ", ".join(f"{name}={value}" for name, value in settings if value is not None),
            )
        )
    if rank.cores is not None:
        used = "" if rank.cores_used is None else f", {rank.cores_used:.2g} of them used"
        threads = ""
        if rank.threads is not None:
            threads = f"; {plural(rank.threads, 'thread')} for operators"
        rows.append(("cores", f"{rank.cores:g}{used}{threads}"))
    waits = _machine(rank)
    if waits:
        rows.append(("machine", waits))
    if rank.device is not None:
        rows.append(("device", _device(rank.device)))
    return rows


def _machine(rank: RankMetadata) -> str:
    """What kept the main thread from running, where it was measured."""
    shares = (
        (rank.queued_share, "without a core for the main thread"),
        (rank.held_back_share, "held back by the container's quota"),
    )
    words = [f"{percent(share)} of the time {what}" for share, what in shares if share is not None]
    if rank.other_cores is not None:
        words.append(f"other processes use {rank.other_cores:.1f} cores")
    return ", ".join(words)


def _device(device: DeviceSample) -> str:
    figures = [
        None if device.busy_share is None else f"{percent(device.busy_share)} busy",
        None if device.sm_clock_mhz is None else f"{device.sm_clock_mhz:.0f} MHz",
        None if device.power_w is None else f"{device.power_w:.0f} W",
        None if device.temperature_c is None else f"{device.temperature_c:.0f} C",
        *(
            f"{name} in {percent(share)} of the samples"
            for name, share in (device.throttled_share or {}).items()
        ),
    ]
    return ", ".join(words for words in figures if words is not None)
