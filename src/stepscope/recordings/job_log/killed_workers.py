"""Workers of a DataLoader were killed: host memory or shared memory ran out.

What it sees: PyTorch's words in the job's output: `DataLoader worker (pid 1234) is killed by
signal: Killed`, a bus error for want of shared memory, workers that exited unexpectedly, a shared
memory object that could not be opened.

Why it costs: the job ends, often hours in. Each worker holds a copy of what the dataset object
keeps in Python (an index of 1.7 GB in each of 29 workers is 49 GB), and `prefetch_factor` batches;
batches come to the trainer through /dev/shm, which is 64 MB in a container unless it is told
otherwise.

Evidence it needs: the job's own output.

What to do: killed: fewer workers, or an index that workers share (numpy arrays or Arrow, not lists
and dicts of Python, whose counts of references copy each page that is read). Bus error:
`--shm-size` or `--ipc=host` for the container, or the sharing strategy "file_system".
Too many open files: `ulimit -n`, or the same strategy.

Example: 29 workers on a machine of 22 GB whose dataset holds a dict of 1.7 GB.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.api import Advice, Auxiliary, Rule

CODE = "killed-workers"
BOUND = "data"
WHY = {
    "worker killed": (
        "A DataLoader's worker was killed: host memory ran out, or its limit.",
        (
            "fewer workers, or an index that they share: numpy or Arrow, not lists and dicts; "
            "dmesg or the container's events say who killed it"
        ),
    ),
    "no shared memory": (
        "A DataLoader's worker ended for want of shared memory.",
        (
            "docker run --shm-size=16g or --ipc=host (Kubernetes: an emptyDir of medium Memory at "
            "/dev/shm); or fewer workers, a smaller prefetch_factor"
        ),
    ),
    "worker crashed": (
        "A DataLoader's worker crashed in native code.",
        (
            "num_workers=0 or faulthandler.enable() in worker_init_fn shows where; libraries with "
            "threads of their own (OpenCV: cv2.setNumThreads(0)) do not stand a fork"
        ),
    ),
    "worker exited": (
        "A DataLoader's worker ended by itself.",
        (
            "num_workers=0 shows the error that ended it; faulthandler.enable() in worker_init_fn "
            "shows a crash"
        ),
    ),
    "too many open files": (
        "Batches could not be handed over: too many open files.",
        'ulimit -n 65535, or torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
}


def advise(auxiliary: Auxiliary) -> Iterator[Advice]:
    """One for each way in which they ended."""
    outputs = () if auxiliary.training is None else auxiliary.training.outputs
    for kind, (summary, action) in WHY.items():
        lines = [
            f"{output.path}:{said.line}: {said.text}"
            for output in outputs
            for said in output.said
            if said.kind == kind
        ]
        if lines:
            yield Advice(
                code=CODE, bound=BOUND, summary=summary, action=action, evidence=tuple(lines[:8])
            )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
