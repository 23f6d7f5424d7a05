"""What a step's work is, where a user names the devices and the model of a job."""

from __future__ import annotations

from stepscope.cli.additions import WorkInWords
from stepscope.core.peak import GivenWork
from stepscope.errors import UsageError
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.model import model_flops_per_token

USUAL = ("bf16", "fp16")


def work_of(devices: str, model: str | None, seq: int | None, batch: int | None) -> GivenWork:
    """The dense peak of 16 bits, and what a step's FLOPs are, where the model is named."""
    cluster = parse_cluster(devices)
    peaks = {name: cluster.peak_flops[name] for name in USUAL if name in cluster.peak_flops}
    if not peaks:
        raise UsageError(f"no 16-bit peak is known of {cluster.device.name}")
    precision = max(peaks, key=peaks.__getitem__)
    flops = None
    if model is not None and seq is not None and batch is not None:
        per_token = model_flops_per_token(find_model(model), seq, halves_causal=True)
        flops = per_token * seq * batch / cluster.num_devices
    return GivenWork(
        device=cluster.device.name,
        precision=precision,
        peak_flops=peaks[precision],
        step_flops=flops,
    )


ADDITION = WorkInWords(work_of)
