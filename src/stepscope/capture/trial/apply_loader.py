"""Settings of DataLoaders, applied on top of what the job gives them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from stepscope.capture.describe.knobs import splits_itself
from stepscope.capture.guard import Guard
from stepscope.capture.trial.applied import Applied, words_of
from stepscope.capture.trial.patches import replace
from stepscope.protocol.settings import OF_LOADERS

OWN_PREFETCH = 2
"""PyTorch's own, where the job gives none."""
NO_WORKERS = "a loader without workers has none"


def apply_to_loaders(guard: Guard, torch: Any, applied: Applied) -> None:
    wanted = applied.wanted(*OF_LOADERS)
    if not wanted:
        return
    for name in wanted:
        applied.failed(name, "no DataLoader was made")

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                job_arguments = dict(bound.arguments)
                bound.arguments.update(changed_loader(torch, job_arguments, wanted, applied))
            except Exception as problem:  # noqa: BLE001 - the job is told by its own call, not by ours
                _failed(applied, wanted, problem)
                original(*args, **kwargs)
                return
            before = dict(vars(args[0]))
            try:
                original(*bound.args, **bound.kwargs)
            except Exception as problem:  # noqa: BLE001 - as above
                _failed(applied, wanted, problem)
                # A loader that came as far as a warning, which some jobs make an error, can be made
                # once.
                vars(args[0]).clear()
                vars(args[0]).update(before)
                original(*args, **kwargs)
                return
            _count(args[0], job_arguments, wanted, applied)

        return wrapper

    replace(guard, torch.utils.data.DataLoader, "__init__", make)


def changed_loader(
    torch: Any, job_arguments: dict[str, Any], wanted: dict[str, Any], applied: Applied
) -> dict[str, Any]:
    """The arguments that become others, in a combination that the loader takes."""
    changed: dict[str, Any] = {}
    workers = job_arguments["num_workers"]
    if (
        "num_workers" in wanted
        and workers != wanted["num_workers"]
        and not applied.is_enough("num_workers", workers)
    ):
        why = _why_not_workers(torch, job_arguments, wanted["num_workers"])
        if why is None:
            changed["num_workers"] = workers = wanted["num_workers"]
        else:
            applied.failed("num_workers", why)
    if "pin_memory" in wanted:
        if not wanted["pin_memory"] or torch.cuda.is_available():
            changed["pin_memory"] = wanted["pin_memory"]
        else:
            applied.failed("pin_memory", "there is no GPU to copy to")
    ready = (
        (job_arguments["prefetch_factor"] or OWN_PREFETCH) if job_arguments["num_workers"] else None
    )
    for name in ("prefetch_factor", "persistent_workers"):
        if name == "prefetch_factor" and name in wanted and applied.is_enough(name, ready):
            continue
        if name in wanted and (workers or not wanted[name]):
            changed[name] = wanted[name]
        elif name in wanted:
            applied.failed(name, NO_WORKERS)
    if not workers:
        # A loader that works by itself takes none of these.
        changed |= {
            "prefetch_factor": None,
            "persistent_workers": False,
            "timeout": 0,
            "multiprocessing_context": None,
        }
    if "batch_size" in wanted:
        if job_arguments["batch_sampler"] is None and job_arguments["batch_size"] is not None:
            changed["batch_size"] = wanted["batch_size"]
        else:
            applied.failed("batch_size", "the job makes its batches by itself")
    return {name: value for name, value in changed.items() if name in job_arguments}


def _why_not_workers(torch: Any, job_arguments: dict[str, Any], num: int) -> str | None:
    dataset = job_arguments["dataset"]
    is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    if is_iterable and job_arguments["num_workers"] <= 1 < num and not splits_itself(dataset):
        return "its dataset is iterable and may give every sample once per worker"
    return None


def _count(
    loader: Any, job_arguments: dict[str, Any], wanted: dict[str, Any], applied: Applied
) -> None:
    for name, value in wanted.items():
        if getattr(loader, name, None) == value:
            applied.took(name, before=job_arguments.get(name))


def _failed(applied: Applied, wanted: dict[str, Any], problem: Exception) -> None:
    for name in wanted:
        applied.failed(name, words_of(problem))
