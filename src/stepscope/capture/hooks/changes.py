"""Everything in a process of the job that the capture changes, each with what it is for and how a
job could notice. Nothing is changed that is not here: functions are looked up in this table, and
a test compares a process before and after. The table in docs/run.md is made of it."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, NamedTuple


class Change(NamedTuple):
    """One row of the table."""

    what: str
    why: str
    notice: str


CODE = "only its `__code__`"
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
"""By module: the class through which all of its calls go, and its methods. Those that the job
itself imports, and no others."""
EVALUATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "transformers.modeling_utils": ("PreTrainedModel", ("eval",)),
}
"""As LOGGERS: classes of models whose eval() does not call that of torch.nn.Module."""


OTHERS = (
    Change(
        "`step` of a class of optimizers, which torch itself wraps",
        "optimizer steps",
        "torch's own wrapper with other code in it, whether stepscope runs or not the same object; "
        "a class that is pickled by value takes it along with calls that do nothing",
    ),
    Change(
        "`__iter__` of an IterableDataset's subclass, and methods that it names, where they are "
        "generators",
        "batches of a dataset that the loop iterates without a DataLoader",
        CODE,
    ),
    Change(
        "`gc.callbacks`",
        "collections of garbage",
        "two entries more, both made of C functions: a signal that arrives meanwhile is handled "
        "after the collection, as without",
    ),
    Change(
        "`atexit`, `os.register_at_fork`, `multiprocessing.util.Finalize`",
        "what is there is written down; a forked child begins anew",
        "one more each, the last from the first step on",
    ),
    Change(
        "threads",
        "one that writes, once a second, from the first step on",
        "`/proc/self/task`, `sys._current_frames()`; `threading` does not know it",
    ),
    Change(
        "files",
        "what is recorded is written to the run folder",
        "open while they are written; a folder beside the job only where it was started there",
    ),
    Change(
        "the environment: `PYTHONPATH`; `TEARDOWN_CUPTI` and `STEPSCOPE_TEARDOWN_CUPTI`",
        "the capture gets in; after a recording with CUDA, CUPTI leaves",
        "`os.environ`, and that of what the job starts",
    ),
    Change(
        "`sys.meta_path`, until torch is imported and while we import",
        "the capture begins with torch",
        "one finder more, which looks at the name `torch` alone",
    ),
    Change(
        "`sys.modules`: `stepscope`, `sitecustomize`, and some of the standard library's `_names`",
        "the capture's own modules",
        "`sys.modules`; modules of the job with such names are its own",
    ),
    Change(
        "marks by which torch's compiler leaves codes alone, on our own",
        "nothing of ours is compiled, and no graph is broken by it",
        "no way is known: torch has no call that reads such a mark",
    ),
    Change(
        "the profiler of torch, while a recording is open",
        "the recording",
        "`torch.autograd._profiler_enabled()`; one that the job starts goes first",
    ),
    Change(
        "the profiler's own warnings and Kineto's level of messages, while a recording is opened, "
        "stepped and closed",
        "none of its lines comes to the job's stderr",
        "from another thread, `torch.profiler.profiler._warn_once`",
    ),
    Change(
        "`torch.nn.modules.module.register_module_forward_(pre_)hook`, with `--modules` and while "
        "a recording is open",
        "marks of modules",
        "torch's tables of global hooks",
    ),
    Change(
        "in trials of `verify`, `tune`, `fix` and `health`: `torch.autograd.backward`, "
        "`torch.compile`, `DataLoader.__init__`, `_BaseDataLoaderIter.__next__`, "
        "`Optimizer.__init__` and `load_state_dict`, and what a setting names",
        "what is tried is set, and the loss of every step is kept",
        "functions of Python around torch's: a trial's job is changed on purpose",
    ),
)
"""What is no function of torch or of a library."""


def table() -> list[Change]:
    """All of it, functions of one purpose in one row."""
    purposes: dict[str, list[str]] = {}
    for name, why in WATCHED.items():
        purposes.setdefault(why, []).append(f"`{name.removeprefix('torch.')}`")
    rows = [Change(", ".join(names), why, CODE) for why, names in purposes.items()]
    loggers = Change(_named(LOGGERS), "logging, where the job imports it", CODE)
    models = Change(_named(EVALUATIONS), "evaluations, where the job imports it", CODE)
    return [*rows, loggers, models, *OTHERS]


def _named(methods: dict[str, tuple[str, tuple[str, ...]]]) -> str:
    return ", ".join(
        f"`{module}.{kind}.{'/'.join(names)}`" for module, (kind, names) in methods.items()
    )


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
