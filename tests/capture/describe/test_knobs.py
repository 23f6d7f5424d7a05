"""The knobs of a job's live objects, read from real objects of torch on the CPU."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.installed import package

torch = package("torch")

from stepscope.capture.describe import knobs, peek, wrappers
from stepscope.capture.describe import model as model_notes
from stepscope.capture.describe.rank import live_notes
from stepscope.capture.hooks.install import begin, forget_session
from stepscope.protocol.options import Options

nn: Any = torch.nn
data: Any = torch.utils.data
Module: Any = nn.Module


class Net(Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 8, bias=False)
        self.third = self.second
        self.gradient_checkpointing = True


class Trap:
    """Whoever asks it for anything but its type runs its code."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the objects of all tests before, and on a machine whose cores others take."""
    monkeypatch.setattr(knobs, "MAX_LOOK_NS", 10**12)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def loader(**given: Any) -> Any:
    return data.DataLoader(data.TensorDataset(torch.zeros(8, 2)), **given)


def test_live_notes_find_the_job_and_can_be_written() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    loaders = [loader(batch_size=2), loader(batch_size=4)]
    feeding = iter(loaders[1])
    trap = Trap()
    notes = json.loads(json.dumps(live_notes(feeding)))
    assert [row["batch_size"] for row in notes["loaders"] if row["is_feeding"]] == [4]
    assert notes["loaders"][0]["is_feeding"]
    assert {"class": "AdamW", "foreach": True, "num_params": 3}.items() <= notes["optimizers"][
        0
    ].items()
    assert "Net" in [model["class"] for model in notes["models"]]
    assert notes["checkpointing"]["gradient_checkpointing"] >= 1
    assert notes["num_objects_seen"] == notes["num_objects"]
    del optimizer, trap


def test_what_was_made_while_the_capture_was_on_has_its_line(tmp_path: Path) -> None:
    session = begin(tmp_path, Options(sample_s=1e6))
    try:
        made = loader(batch_size=2)
        optimizer = torch.optim.AdamW(Net().parameters())
    finally:
        session.guard.off()
        forget_session(session)
    before = loader(batch_size=2)
    line_of = session.made_at.line_of
    here = f"{__file__}({made_line()}): loader"
    assert line_of(made) == here
    assert (line_of(optimizer) or "").endswith("has_its_line")
    assert line_of(before) is None
    notes = live_notes(iter(made), line_of)
    assert {row["made_at"] for row in notes["loaders"] if row["is_feeding"]} == {here}


def made_line() -> int:
    return loader.__code__.co_firstlineno + 1


def test_live_notes_without_a_loader() -> None:
    assert live_notes(None)["loader_iter"] is None


def test_find_ends_in_time_and_says_how_far_it_came() -> None:
    times = iter([0, *[10**13] * 5])
    more = [[number] for number in range(knobs.CHUNK)]
    found = knobs.find_live_objects(torch, lambda: next(times))
    assert found.num_seen == knobs.CHUNK < found.num_objects
    assert len(more) == knobs.CHUNK, "they are there whatever else is"


def test_find_sees_each_object_once_and_holds_none_longer() -> None:
    net = Net()
    found = knobs.find_live_objects(torch)
    assert sum(one is net for one in found.modules) == 1
    del found
    assert not any(
        type(holder) is list and holder is not gc.garbage for holder in gc.get_referrers(net)
    )


def test_loader_notes_tell_what_was_given() -> None:
    given = loader(
        batch_size=2,
        num_workers=2,
        prefetch_factor=3,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    notes = knobs.loader_notes(given)
    assert notes["num_workers"] == 2
    assert notes["prefetch_factor"] == 3
    assert notes["persistent_workers"] is True
    assert notes["pin_memory"] is False
    assert notes["start_method"] == "spawn"
    assert (notes["dataset"], notes["sampler"]) == ("TensorDataset", "SequentialSampler")
    assert notes["is_feeding"] is False


def test_loader_notes_take_the_size_from_a_batch_sampler() -> None:
    sampler = data.BatchSampler(data.SequentialSampler(range(8)), batch_size=3, drop_last=False)
    assert knobs.loader_notes(loader(batch_sampler=sampler))["batch_size"] == 3


def test_the_iterator_of_a_loader_that_nobody_keeps_tells_its_batch_size() -> None:
    notes = knobs.loader_iter_notes(iter(loader(batch_size=3)))
    assert (notes["batch_size"], notes["dataset"]) == (3, "TensorDataset")
    assert knobs.loader_iter_notes(iter(loader(batch_size=None)))["batch_size"] is None
    assert notes["is_iterable"] is False


def test_an_iterable_dataset_is_told_from_a_mapped_one() -> None:
    class Lines(data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    of_lines = data.DataLoader(Lines(), batch_size=2)
    assert knobs.loader_iter_notes(iter(of_lines))["is_iterable"] is True
    assert knobs.loader_iter_notes(SimpleNamespace())["is_iterable"] is None


def test_a_dataset_that_asks_for_its_worker_splits_itself() -> None:
    class Whole(data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    class Split(Whole):
        def __iter__(self) -> Iterator[int]:
            def own() -> Iterator[int]:
                worker = data.get_worker_info()
                yield from range(4 if worker is None else worker.id)

            return own()

    assert not knobs.splits_itself(Whole())
    assert knobs.splits_itself(Split())
    assert knobs.loader_iter_notes(iter(data.DataLoader(Split())))["splits_itself"] is True
    assert knobs.loader_iter_notes(iter(loader(batch_size=3)))["splits_itself"] is None
    bare = knobs.loader_iter_notes(Whole())
    assert (bare["is_bare"], bare["num_workers"], bare["dataset"]) == (True, 0, "Whole")


def test_loader_notes_of_something_else_are_nones() -> None:
    assert knobs.loader_notes(SimpleNamespace())["num_workers"] is None


def test_start_method_does_not_fix_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def get_start_method(allow_none: bool = False) -> None:
        asked.append(allow_none)

    monkeypatch.setattr("multiprocessing.get_start_method", get_start_method)
    assert knobs.start_method(None) in {"fork", "forkserver", "spawn"}
    assert asked == [True]


def test_optimizer_notes_of_a_wrapper_name_what_it_wraps() -> None:
    inner = torch.optim.SGD(Net().parameters(), lr=0.1, fused=True)
    assert knobs.optimizer_notes(inner)["fused"] is True
    wrapper = SimpleNamespace(optimizer=inner)
    assert knobs.optimizer_notes(wrapper)["wraps"] == "SGD"
    assert knobs.optimizer_notes(wrapper)["num_params"] is None


@pytest.mark.usefixtures("group")
def test_ddp_notes() -> None:
    ddp = nn.parallel.DistributedDataParallel(
        Net(), bucket_cap_mb=10, find_unused_parameters=True, gradient_as_bucket_view=True
    )
    notes = wrappers.wrapper_notes(torch, [ddp, *ddp.modules()])["ddp"][0]
    assert notes["bucket_cap_mb"] == 10
    assert notes["find_unused_parameters"] is True
    assert notes["gradient_as_bucket_view"] is True
    assert (
        notes["static_graph"],
        notes["broadcast_buffers"],
        notes["require_backward_grad_sync"],
    ) == (False, True, True)
    assert notes["process_group_size"] == 1


@pytest.mark.usefixtures("group")
def test_fsdp2_notes() -> None:
    fsdp = package("torch.distributed.fsdp")
    net = Net()
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    fsdp.fully_shard(net.first, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fsdp.fully_shard(net, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    rows = {
        row["class"]: row for row in wrappers.wrapper_notes(torch, list(net.modules()))["fsdp2"]
    }
    assert rows["Linear"]["reshard_after_forward"] is False
    assert rows["Net"]["reshard_after_forward"] is True
    assert (rows["Net"]["param_dtype"], rows["Net"]["reduce_dtype"]) == ("bfloat16", "float32")
    assert rows["Net"]["num_forward_prefetch"] == 0
    notes = model_notes.model_notes(torch, list(net.modules()))["models"][0]
    assert notes["num_params"] == 4 * 8 + 8 + 8 * 8
    assert notes["local_param_bytes"] == notes["param_bytes"]


def test_fsdp_notes_of_the_older_one() -> None:
    fsdp = package("torch.distributed.fsdp")
    module = SimpleNamespace(
        sharding_strategy=fsdp.ShardingStrategy.SHARD_GRAD_OP,
        forward_prefetch=False,
        backward_prefetch=fsdp.BackwardPrefetch.BACKWARD_PRE,
        limit_all_gathers=True,
        cpu_offload=fsdp.CPUOffload(offload_params=True),
        mixed_precision=fsdp.MixedPrecision(param_dtype=torch.bfloat16),
    )
    notes = wrappers.fsdp_notes(module)
    assert notes["sharding_strategy"] == "SHARD_GRAD_OP"
    assert notes["backward_prefetch"] == "BACKWARD_PRE"
    assert notes["cpu_offload"] is True
    assert (notes["param_dtype"], notes["reduce_dtype"]) == ("bfloat16", None)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_notes() -> None:
    wrapped = [
        torch.compile(Net(), backend="eager", fullgraph=True),
        torch.compile(Net(), mode="reduce-overhead"),
    ]
    in_place = nn.Linear(2, 2)
    in_place.compile(backend="eager")
    rows = wrappers.compiled_notes([*wrapped, in_place])
    assert {"backend": "eager", "class": "Net", "fullgraph": True}.items() <= rows[0].items()
    assert {"backend": "inductor", "mode": "reduce-overhead"}.items() <= rows[1].items()
    assert {"class": "Linear", "in_place": True}.items() <= rows[2].items()


def test_data_parallel_and_nothing_else() -> None:
    notes = wrappers.wrapper_notes(torch, [nn.DataParallel(Net())])
    assert [row["class"] for row in notes["data_parallel"]] == ["DataParallel"]
    assert (notes["ddp"], notes["fsdp"], notes["compiled"]) == ([], [], [])


def test_peek_runs_nothing_of_the_object() -> None:
    assert peek.attributes(Trap()) == {}
    assert peek.chosen(Trap(), "a") == {"a": None}
    assert peek.plain(Trap()) is None
    assert peek.ask(Trap(), "a.b") is None


def test_counted_puts_equal_rows_together() -> None:
    assert peek.counted([{"a": 1}, {"a": 2}, {"a": 1}]) == [{"a": 1, "num": 2}, {"a": 2, "num": 1}]
