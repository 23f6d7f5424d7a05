"""Two ranks are on one device: NCCL refuses to begin, or both run at half its speed.

What it sees: NCCL's warning "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device ..." in
its log or in the job's output.

Why it costs: NCCL makes no communicator of two ranks on one device: the job ends, or hangs where a
rank catches the error.

Evidence it needs: a log of NCCL (`NCCL_DEBUG=WARN` is enough), or the job's output with PyTorch's
exception in it.

What to do: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything else uses the
device, one rank for each device (`torchrun --nproc_per_node` at most as many as there are), and
`CUDA_VISIBLE_DEVICES` that does not give all ranks the same one.

Example: eight processes under torchrun with `device = "cuda"` and no `set_device`: all are on
device 0.
"""

from __future__ import annotations

import re

from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.nccl import NcclLog
from stepscope.rules.rule import Rule

CODE = "shared-device"
BOUND = "comms"
DUPLICATE = re.compile(
    r"Duplicate GPU detected ?:? ?rank (\d{1,9}) and rank (\d{1,9}) both on (?:CUDA|HIP)? ?device"
    r" (\w{1,16})",
    re.IGNORECASE,
)


def advise_by_log(nccl: NcclLog) -> Advice | None:
    """Advice on ranks that share a device, by NCCL's own word."""
    matches = [
        (warning, match)
        for warning in nccl.warnings
        if (match := DUPLICATE.search(warning.text)) is not None
    ]
    if not matches:
        return None
    ranks = tuple(sorted({int(match[at]) for _, match in matches for at in (1, 2)}))
    first, second, device = matches[0][1].group(1, 2, 3)
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"Ranks {second} and {first} are on one device ({device}): NCCL refuses to begin.",
        action='torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the device is first '
        "used, and no more ranks on a machine than it has devices",
        evidence=tuple(f"NCCL: {warning.text}" for warning, _ in matches[:8]),
        ranks=ranks,
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise_by_log=advise_by_log)
