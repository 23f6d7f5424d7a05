"""Every function in a process of the job that the capture changes, with what it is for. None is
changed that is not here: functions are looked up in this table, and a test compares a process
before and after. The table in docs/run.md is made of it, and has what is no function too."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

WATCHED: dict[str, str] = {
    "torch.optim.Optimizer.profile_hook_step": "optimizer steps",
    "torch.autograd.backward": "backward passes, and now and then the loss",
    "torch.utils.data.dataloader._BaseDataLoaderIter.__next__": "waiting for a batch",
    "torch.utils.data.DataLoader.__iter__": "epochs",
    "torch.utils.data.DataLoader.__init__": "lines that made a loader or an optimizer",
    "torch.optim.Optimizer.__init__": "lines that made a loader or an optimizer",
    "torch.cuda.CUDAGraph.replay": "steps inside a CUDA graph",
    "torch.save": "saves",
    "torch.nn.Module.eval": "evaluations",
    "torch.amp.grad_scaler.GradScaler.scale": "the loss before its scale",
    "torch.autograd.profiler.profile._prepare_trace": "a profiler of the job's goes first",
    "torch.autograd.profiler.profile._start_trace": "a profiler of the job's goes first",
    "torch.autograd.profiler.profile.__enter__": "a profiler of the job's goes first",
    "torch.autograd.profiler.profile.__exit__": "a profiler of the job's goes first",
    **{
        f"torch.distributed.{name}": "waiting for other ranks"
        for name in (
            *("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all"),
            *("all_to_all_single", "barrier", "broadcast", "monitored_barrier", "reduce"),
            *("reduce_scatter", "reduce_scatter_tensor"),
        )
    },
}
"""Functions of torch."""
SUMMARY = ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure")
LOGGERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "logging": ("Logger", ("handle",)),
    "tqdm.std": ("tqdm", ("display",)),
    "torch.utils.tensorboard.writer": ("SummaryWriter", (*SUMMARY, "add_text", "flush")),
    "tensorboardX.writer": ("SummaryWriter", (*SUMMARY, "add_text", "flush")),
    "wandb.sdk.wandb_run": ("Run", ("log",)),
    "mlflow.tracking.client": ("MlflowClient", ("log_metric", "log_batch", "log_artifact")),
    "comet_ml.experiment": ("BaseExperiment", ("log_metric", "log_metrics")),
}
"""Loggers by module: the class through which all of its calls go, and its methods. Those that the
job itself imports, and no others."""
EVALUATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "transformers.modeling_utils": ("PreTrainedModel", ("eval",)),
}
"""Evaluations as LOGGERS has them: classes of models whose eval() does not call that of
torch.nn.Module."""


def watched_function(name: str) -> FunctionType | None:
    """The function of that name, where it is there and written in Python."""
    assert name in WATCHED, f"{name} is not in the table of what is changed"
    parts = name.split(".")
    held: Any = sys.modules.get(parts[0])
    for index, part in enumerate(parts[1:], 2):
        holder, held = held, sys.modules.get(".".join(parts[:index]))
        if held is None and isinstance(holder, type):
            held = holder.__dict__.get(part)
        elif held is None:
            held = getattr(holder, part, None)
    function = getattr(held, "__func__", held)
    return function if isinstance(function, FunctionType) else None
