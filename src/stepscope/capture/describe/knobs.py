"""The job's live objects, found in one pass over what the garbage collector tracks,
and what they are set to."""

from __future__ import annotations

import gc
import multiprocessing
import sys
from collections.abc import Callable
from itertools import compress, islice
from types import CodeType, FunctionType
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.describe.peek import (
    ask,
    attempt,
    attributes,
    chosen,
    class_of,
    counted,
    plain,
)
from stepscope.capture.describe.wrappers import wrapper_notes

MAX_LOOK_NS = 500_000_000
"""Nanoseconds of the training thread's own time, which it spends on the pass: beyond this it ends
where it is, and the notes say how far it came. Not of the clock on the wall: where other processes
hold it up, the pass would end as often as not."""
CHUNK = 4_096
"""Objects looked at together: most such stretches have nothing of interest,
and are passed over at once."""
ITERABLE = 1
"""Value of torch.utils.data.dataloader._DatasetKind for an IterableDataset."""
MAX_ROWS = 16
LineOf = Callable[[Any], "str | None"]
"""The line of the training code that made an object; None where it is not known."""
ASKS_WORKER = "get_worker_info"
MAX_CODES = 1_000


class LiveObjects:
    """The objects of interest, held for the length of one look."""

    def __init__(self) -> None:
        self.modules: list[Any] = []
        self.loaders: list[Any] = []
        self.optimizers: list[Any] = []
        self.scalers: list[Any] = []
        self.num_objects = 0
        self.num_seen = 0
        self.num_frozen = 0
        """Objects that the job has taken from the collector by gc.freeze(),
        and so from this pass."""


def find_live_objects(torch: Any, clock: Callable[[], int] = clocks.thread_time_ns) -> LiveObjects:
    """One pass.

    An object is asked for nothing but its type: asking a proxy for more might run it.
    """
    live = LiveObjects()
    kinds = _kinds(torch, live)
    lists: dict[type, list[Any] | None] = {}
    until = clock() + MAX_LOOK_NS
    objects = gc.get_objects()
    live.num_objects = len(objects)
    live.num_frozen = gc.get_freeze_count()
    types_of_all = map(type, objects)
    while types := set(islice(types_of_all, CHUNK)):
        for kind in [kind for kind in types if kind not in lists]:
            lists[kind] = next((into for base, into in kinds if issubclass(kind, base)), None)
        wanted = {kind: into for kind in types if (into := lists[kind]) is not None}
        if wanted:
            chunk = objects[live.num_seen : live.num_seen + CHUNK]
            for obj in compress(chunk, map(wanted.__contains__, map(type, chunk))):
                wanted[type(obj)].append(obj)
        live.num_seen = min(live.num_seen + CHUNK, live.num_objects)
        if clock() > until:
            break
    return live


def _kinds(torch: Any, live: LiveObjects) -> list[tuple[type, list[Any]]]:
    kinds = [
        (torch.nn.Module, live.modules),
        (torch.utils.data.DataLoader, live.loaders),
        (torch.optim.Optimizer, live.optimizers),
    ]
    for name in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
        scaler = getattr(sys.modules.get(name), "GradScaler", None)
        if isinstance(scaler, type):
            kinds.append((scaler, live.scalers))
    return kinds


def object_notes(
    torch: Any, live: LiveObjects, loader_iter: Any, line_of: LineOf = lambda _: None
) -> dict[str, Any]:
    """What was found, in plain words: the knobs of loaders, optimizers, scalers and wrappers."""
    loaders = sorted(
        (
            {**(attempt(loader_notes, loader, loader_iter) or {}), "made_at": line_of(loader)}
            for loader in live.loaders
        ),
        key=_is_not_feeding,
    )
    return {
        "loaders": loaders[:MAX_ROWS],
        "num_loaders": len(loaders),
        "loader_iter": None if loader_iter is None else attempt(loader_iter_notes, loader_iter),
        "optimizers": counted(
            {**(attempt(optimizer_notes, optimizer) or {}), "made_at": line_of(optimizer)}
            for optimizer in live.optimizers
        ),
        "grad_scalers": counted(
            {
                "enabled": plain(attributes(scaler).get("_enabled")),
                "growth_interval": plain(attributes(scaler).get("_growth_interval")),
            }
            for scaler in live.scalers
        ),
        **wrapper_notes(torch, live.modules),
    }


def loader_notes(loader: Any, loader_iter: Any = None) -> dict[str, Any]:
    """A DataLoader.

    `is_feeding` says that the iterator which gave the last batch is one of its own.
    """
    attrs = attributes(loader)
    context = attrs.get("_DataLoader__multiprocessing_context")
    batch_sampler = attrs.get("batch_sampler")
    batch_size = attrs.get("batch_size")
    return {
        "class": class_of(loader),
        "is_feeding": loader_iter is not None and _feeds(attrs, loader_iter),
        **chosen(
            loader,
            "num_workers",
            "pin_memory",
            "prefetch_factor",
            "persistent_workers",
            "timeout",
            "drop_last",
            "in_order",
        ),
        "batch_size": plain(
            batch_size if batch_size is not None else attributes(batch_sampler).get("batch_size")
        ),
        "start_method": start_method(context),
        "dataset": class_of(attrs.get("dataset")),
        "sampler": class_of(attrs.get("sampler")),
        "batch_sampler": class_of(batch_sampler),
        "collate": plain(getattr(attrs.get("collate_fn"), "__name__", None)),
    }


def loader_iter_notes(loader_iter: Any) -> dict[str, Any]:
    """The iterator in use, as it is now.

    What was asked for, and how many batches its workers owe. Or a dataset that the job iterates by
    itself.
    """
    if issubclass(type(loader_iter), sys.modules["torch"].utils.data.IterableDataset):
        return {
            "dataset": class_of(loader_iter),
            "is_iterable": True,
            "is_bare": True,
            "splits_itself": splits_itself(loader_iter),
            "num_workers": 0,
        }
    attrs = attributes(loader_iter)
    kind = attrs.get("_dataset_kind")
    names = (
        "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "timeout",
        "tasks_outstanding",
    )  # fmt: skip
    return {
        "class": class_of(loader_iter),
        "dataset": class_of(attrs.get("_dataset")),
        "is_iterable": None if kind is None else kind == ITERABLE,
        "splits_itself": splits_itself(attrs.get("_dataset")) if kind == ITERABLE else None,
        # Its DataLoader may be gone: `for batch in DataLoader(...)` keeps the iterator alone.
        "batch_size": plain(attributes(attrs.get("_index_sampler")).get("batch_size")),
        **{name: plain(attrs.get("_" + name)) for name in names},
    }


def splits_itself(dataset: Any) -> bool:
    """Whether the code of its classes asks which worker it runs in, as one must that gives each
    worker samples of its own. Their code is read, not run."""
    own = [
        vars(kind)
        for kind in type(dataset).__mro__
        if not str(kind.__module__).startswith("torch.")
    ]
    codes = [
        value.__code__
        for names in own
        for value in names.values()
        if isinstance(value, FunctionType)
    ]
    seen = 0
    while codes and seen < MAX_CODES:
        code, seen = codes.pop(), seen + 1
        if ASKS_WORKER in code.co_names:
            return True
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
    return False


def start_method(context: Any) -> str | None:
    """How workers are started. Asking for the default in the usual way would fix it for the job."""
    if context is not None:
        return plain(ask(context, "get_start_method"))  # type: ignore[no-any-return]
    return (
        multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0]
    )


def optimizer_notes(optimizer: Any) -> dict[str, Any]:
    """An optimizer: how it steps, and over how many tensors.

    `foreach` None leaves the choice to torch.
    """
    attrs = attributes(optimizer)
    defaults = attrs.get("defaults")
    groups = attrs.get("param_groups")
    num_params = None
    if type(groups) is list:
        num_params = sum(len(group["params"]) for group in groups)
    first = groups[0] if type(groups) is list and groups else {}
    options = {**(defaults if type(defaults) is dict else {}), **first}
    inner = attrs.get("optimizer", attrs.get("optim"))
    return {
        "class": class_of(optimizer),
        "wraps": class_of(inner),
        **{
            name: plain(options.get(name))
            for name in ("foreach", "fused", "capturable", "differentiable", "amsgrad")
        },
        "num_groups": len(groups) if type(groups) is list else None,
        "num_params": num_params,
    }


def _feeds(attrs: dict[str, Any], loader_iter: Any) -> bool:
    if attrs.get("_iterator") is loader_iter:
        return True
    iter_attrs = attributes(loader_iter)
    # An iterator does not name its loader, but shares the sampler with it.
    samplers = (attrs.get("batch_sampler"), attrs.get("sampler"))
    index_sampler = iter_attrs.get("_index_sampler")
    shares_sampler = any(index_sampler is sampler for sampler in samplers if sampler is not None)
    return iter_attrs.get("_dataset") is attrs.get("dataset") and shares_sampler


def _is_not_feeding(notes: dict[str, Any]) -> bool:
    return not notes.get("is_feeding")
