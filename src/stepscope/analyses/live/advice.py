"""What to do about each kind of trouble, in one sentence or two."""

from __future__ import annotations

ACTIONS = {
    "late-rank": (
        "Compare its host and device with its neighbours' (`stepscope triage`, `stepscope "
        "attach`); move the rank if they are not alike."
    ),
    "slow-group": "Look for what these ranks share: a host, a switch, a power supply, a shard.",
    "step-time": "Diagnose the recording, or `stepscope compare` it with the run's first.",
    "busy-machine": "End or move what else runs there, or give the job cores of its own.",
    "loader": "Give the loader more workers, or look at where its files are: `stepscope triage`.",
    "bandwidth": (
        "Look at the links' counters and at who else uses them: `NCCL_DEBUG=INFO` names the path, "
        "`stepscope calibrate` measures it."
    ),
    "clock": "Look at the device's temperature, power and fans: `nvidia-smi -q -d PERFORMANCE`.",
    "utilisation": "The device waits: see the loader, the other ranks, or record (kill -USR2).",
    "loss-nan": "Stop, and go back to the last checkpoint before the step named.",
    "loss-spike": "Save now; if it does not come down, go back and skip these batches.",
    "host-memory": "Save now. Look for lists that grow, and tensors kept with their graphs.",
    "device-memory": "Save now. A smaller batch, or tensors that are kept: `--memory` names them.",
    "silent": "See whether its process lives; the others will wait for it.",
    "stalled": "`stepscope attach` says where it stands.",
}
