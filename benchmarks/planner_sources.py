"""What sources of published results say elsewhere than in their rows, as the fields of a row that
say it.

`stepscope plan --rows` knows no source: what a row does not say is unknown to it. The benchmark
adds this first.
"""

from __future__ import annotations

from typing import Any

VOCAB = {"vocab": 50257}
"""vTrain's repository says it (src/config.py)."""
FACTS: dict[str, dict[str, Any]] = {
    # Put together of its own modules, whose tensor ranks get as much of the vocabulary as comes out
    # even (src/model/gpt_modeling.py): steps are linear in micro-batches to the last digit.
    "vtrain-single": {"model": VOCAB, "conventions": {"pads_vocab": False, "drops_rest": True}},
    # Runs of Megatron-DeepSpeed, which pads: one layout takes twice as long with micro-batches of
    # 64 as with 32, which no sum of operators gives.
    "vtrain-multi": {"model": VOCAB},
    # Its chronicles: nodes hung unless CUDA_LAUNCH_BLOCKING=1 was set.
    "bloom-176b-sweep": {"conventions": {"waits": True}},
    # nanotron's launch scripts for that cluster have FI_PROVIDER="efa".
    # Its rank 0 writes its own peak (helpers.py, log_throughput), and that is of the first stage.
    "ultrascale-sweep": {"cluster": {"network": "efa"}, "memory_of": "first stage"},
}


def memory_of(row: dict[str, Any]) -> str:
    """What the row's peak is of, by what its source says of it."""
    kind = str((row.get("measured") or {}).get("mem_kind") or "")
    if "nvidia-smi" in kind:
        return "device"
    if "analytic" in kind:
        return "states and activations"
    return "allocated" if "allocated" in kind else "reserved"


def with_source_facts(row: dict[str, Any]) -> dict[str, Any]:
    """The row, and what its source says elsewhere. What the row itself says of a model stays."""
    facts = FACTS.get(str(row.get("source")), {})
    parts = {
        key: value | (row.get(key) or {}) for key, value in facts.items() if isinstance(value, dict)
    }
    return row | {"memory_of": memory_of(row)} | facts | parts
