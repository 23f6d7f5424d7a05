"""Plain training jobs for a machine with a GPU, of the kinds that people run: each ends by itself
within seconds and prints the same every time.

    python benchmarks/gpu_jobs.py NAME

`python -m benchmarks.harm --gpu` runs each plain and recorded. They have nothing of ours in them.
On a machine without one those of ON_GPU_ALONE are left out.
"""

# mypy: disable-error-code="no-untyped-call,arg-type,index"

from __future__ import annotations

import copy
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 256
NUM_STEPS = 60


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)).to(DEVICE)


def data(num: int = 1_024) -> TensorDataset:
    drawn = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, WIDTH, generator=drawn)
    return TensorDataset(inputs, torch.arange(num) % 8)


def batches(num: int = NUM_STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    inputs, labels = data()[:64]
    for _ in range(num):
        yield inputs.to(DEVICE), labels.to(DEVICE)


def adam(trained: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.parameters(), lr=1e-3, **settings)


def one_step(
    trained: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    loss = functional.cross_entropy(trained(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def train(trained: nn.Module, num: int = NUM_STEPS) -> None:
    optimizer = adam(trained)
    loss = torch.zeros(())
    for batch in batches(num):
        loss = one_step(trained, optimizer, batch)
    print(f"loss {loss.item():.3f}")


def epochs(num_workers: int = 4, num: int = 3, **settings: Any) -> None:
    """Every epoch starts its workers anew, with CUDA in use."""
    trained = model()
    optimizer = adam(trained)
    loader = DataLoader(
        data(), batch_size=32, num_workers=num_workers, pin_memory=DEVICE == "cuda", **settings
    )
    for epoch in range(num):
        loss = torch.zeros(())
        for inputs, labels in loader:
            batch = inputs.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            loss = one_step(trained, optimizer, batch)
        print(f"epoch {epoch}: loss {loss.item():.3f}")


def scaler() -> None:
    trained = model()
    optimizer = adam(trained)
    scaled = torch.amp.GradScaler(DEVICE, init_scale=2.0**40)
    loss = torch.zeros(())
    for inputs, labels in batches():
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = functional.cross_entropy(trained(inputs), labels)
        scaled.scale(loss).backward()
        scaled.unscale_(optimizer)
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        scaled.step(optimizer)
        scaled.update()
        optimizer.zero_grad()
    print(f"loss {loss.item():.2f}, scale {scaled.get_scale():.0f}")


def compiled(mode: str) -> None:
    trained = model()
    train(torch.compile(trained, mode=mode))


def whole_graph() -> None:
    """Forward, backward and optimizer in one CUDA graph, as PyTorch's notes show it."""
    trained = model()
    optimizer = adam(trained, capturable=True)
    batch = next(batches())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            one_step(trained, optimizer, batch)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = functional.cross_entropy(trained(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
    for inputs, labels in batches():
        batch[0].copy_(inputs)
        batch[1].copy_(labels)
        graph.replay()
    print(f"loss {loss.item():.3f}")


def graphed_forward() -> None:
    trained = model()
    graphed = torch.cuda.make_graphed_callables(trained, (next(batches())[0],))
    train(graphed)


def side_stream() -> None:
    """A prefetcher that copies the next batch on a stream of its own."""
    trained = model()
    optimizer = adam(trained)
    stream = torch.cuda.Stream()
    loader = iter(DataLoader(data(4_096), batch_size=64, num_workers=2, pin_memory=True))

    def fetched() -> list[torch.Tensor] | None:
        batch = next(loader, None)
        with torch.cuda.stream(stream):
            return batch and [part.to(DEVICE, non_blocking=True) for part in batch]

    following = fetched()
    loss = torch.zeros(())
    while following is not None:
        torch.cuda.current_stream().wait_stream(stream)
        for part in following:
            part.record_stream(torch.cuda.current_stream())
        inputs, labels = following
        following = fetched()
        loss = one_step(trained, optimizer, (inputs, labels))
    print(f"loss {loss.item():.3f}")


def out_of_memory_caught() -> None:
    """The job asks for too much in every tenth step, and goes on."""
    trained = model()
    optimizer = adam(trained)
    caught = 0
    loss = torch.zeros(())
    for step, batch in enumerate(batches()):
        try:
            if step % 10 == 5:
                torch.empty(1 << 45, dtype=torch.uint8, device=DEVICE)
        except (torch.OutOfMemoryError, RuntimeError):
            caught += 1
        loss = one_step(trained, optimizer, batch)
    print(f"loss {loss.item():.3f}, {caught} caught")


def out_of_memory() -> None:
    trained = model()
    optimizer = adam(trained)
    for step, batch in enumerate(batches()):
        one_step(trained, optimizer, batch)
        if step == 40:
            torch.empty(1 << 45, dtype=torch.uint8, device=DEVICE)


def device_assert(at_step: int) -> None:
    """An index out of range, after a while: the device is lost, and every later call fails."""
    trained = model()
    optimizer = adam(trained)
    for step, batch in enumerate(batches()):
        if step == at_step:
            batch[1].fill_(9)
        one_step(trained, optimizer, batch)
        torch.cuda.synchronize()
        time.sleep(0.01)


def not_a_number() -> None:
    trained = model()
    optimizer = adam(trained)
    loss = torch.zeros(())
    for step, batch in enumerate(batches()):
        if step == 30:
            batch[0].fill_(float("nan"))
        loss = one_step(trained, optimizer, batch)
    print(f"loss {loss.item():.3f}")


def own_profiler() -> None:
    trained = model()
    optimizer = adam(trained)
    schedule = torch.profiler.schedule(wait=5, warmup=2, active=3, repeat=2)
    ready: list[int] = []
    with torch.profiler.profile(
        schedule=schedule, on_trace_ready=lambda profiler: ready.append(profiler.step_num)
    ) as profiler:
        for batch in batches():
            one_step(trained, optimizer, batch)
            profiler.step()
    print(f"traces at {ready}")


def forks() -> None:
    """Children with and without handlers, while CUDA is in use."""
    trained = model()
    optimizer = adam(trained)
    codes = []
    for step, batch in enumerate(batches()):
        one_step(trained, optimizer, batch)
        if step % 20 == 15:
            child = os.fork()
            if child == 0:
                sys.exit(5)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            codes.append(subprocess.run([sys.executable, "-c", "pass"], check=False).returncode)
    print(codes)


def pool() -> None:
    """Processes forked from a job with CUDA in use, for tasks of the host."""
    trained = model()
    optimizer = adam(trained)
    for step, batch in enumerate(batches()):
        one_step(trained, optimizer, batch)
        if step % 20 == 15:
            with torch.multiprocessing.get_context("fork").Pool(2) as workers:
                print(sum(workers.map(abs, range(-5, 0))))


def saves() -> None:
    """Checkpoints, a moving average of the weights, and a resume."""
    trained = model()
    optimizer = adam(trained)
    average = copy.deepcopy(trained)
    loss = torch.zeros(())
    with tempfile.TemporaryDirectory() as folder:
        for step, batch in enumerate(batches()):
            loss = one_step(trained, optimizer, batch)
            with torch.no_grad():
                for kept, new in zip(average.parameters(), trained.parameters(), strict=True):
                    kept.lerp_(new, 0.1)
            if step % 20 == 19:
                state = {"model": trained.state_dict(), "optimizer": optimizer.state_dict()}
                thread = threading.Thread(target=torch.save, args=(state, f"{folder}/last.pt"))
                thread.start()
                thread.join()
        state = torch.load(f"{folder}/last.pt", map_location=DEVICE, weights_only=True)
        trained.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    copied = copy.deepcopy(optimizer)
    print(f"loss {loss.item():.3f}, {len(copied.state)} states")


def fused_in_backward() -> None:
    """An optimizer for every parameter, stepped inside the backward pass."""
    trained = model()
    optimizers = {part: torch.optim.SGD([part], lr=0.01) for part in trained.parameters()}

    def stepped(part: torch.Tensor) -> None:
        optimizers[part].step()
        optimizers[part].zero_grad()

    for part in trained.parameters():
        part.register_post_accumulate_grad_hook(stepped)
    loss = torch.zeros(())
    for inputs, labels in batches():
        loss = functional.cross_entropy(trained(inputs), labels)
        loss.backward()
    print(f"loss {loss.item():.3f}")


def terminated() -> None:
    """SIGTERM asks it to save and leave, as a scheduler does."""
    trained = model()
    optimizer = adam(trained)
    asked = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    for step, batch in enumerate(batches()):
        one_step(trained, optimizer, batch)
        if step == 40:
            os.kill(os.getpid(), signal.SIGTERM)
        if asked:
            print(f"saved at {step}")
            sys.exit(3)


def _group() -> None:
    # Several ranks of NCCL share a device where each says that it is another host.
    os.environ["NCCL_HOSTID"] = os.environ["RANK"]
    torch.distributed.init_process_group("nccl" if DEVICE == "cuda" else "gloo")


def ddp() -> None:
    """Two ranks, two epochs with new workers each."""
    _group()
    trained = nn.parallel.DistributedDataParallel(model())
    optimizer = adam(trained)
    sampler: Any = torch.utils.data.distributed.DistributedSampler(data(4_096))
    loader = DataLoader(data(4_096), batch_size=64, sampler=sampler, num_workers=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        loss = torch.zeros(())
        for inputs, labels in loader:
            loss = one_step(trained, optimizer, (inputs.to(DEVICE), labels.to(DEVICE)))
        if torch.distributed.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    torch.distributed.destroy_process_group()


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    _group()
    trained = model()
    for part in trained:
        fully_shard(part)
    fully_shard(trained)
    optimizer = adam(trained)
    loss = torch.zeros(())
    for batch in batches():
        loss = one_step(trained, optimizer, batch)
    if torch.distributed.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    torch.distributed.destroy_process_group()


def rank_fails() -> None:
    """The second of two ranks ends with an exception; the launcher ends the first."""
    _group()
    trained = nn.parallel.DistributedDataParallel(model())
    optimizer = adam(trained)
    for step, batch in enumerate(batches()):
        one_step(trained, optimizer, batch)
        if step == 40 and torch.distributed.get_rank() == 1:
            raise RuntimeError("rank 1 gives up")


def trainer() -> None:
    """Hugging Face's Trainer: mixed precision, accumulation, evaluation."""
    transformers: Any = importlib.import_module("transformers")
    callbacks: Any = importlib.import_module("transformers.trainer_callback")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=128, vocab_size=512)
    rows = [{"input_ids": list(range(n, n + 64))} for n in range(256)]
    for row in rows:
        row["labels"] = row["input_ids"]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            bf16=True,
            eval_strategy="epoch",
            save_strategy="no",
            dataloader_num_workers=2,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        ran = transformers.Trainer(
            model=transformers.GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=rows,
            eval_dataset=rows[:32],
        )
        # It prints how long things took.
        ran.remove_callback(callbacks.PrinterCallback)
        print(f"{ran.train().global_step} steps")


def lightning() -> None:
    pl: Any = importlib.import_module("lightning")

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return functional.cross_entropy(self.inner(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("left", functional.cross_entropy(self.inner(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adam(self)

    with tempfile.TemporaryDirectory() as folder:
        ran = pl.Trainer(
            max_epochs=3,
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            precision="bf16-mixed",
        )
        loader = DataLoader(data(), batch_size=32, num_workers=2)
        ran.fit(Module(), loader, DataLoader(data(128), batch_size=32, num_workers=2))
        print(f"{ran.global_step} steps, loss {ran.callback_metrics['left']:.2f}")


JOBS: dict[str, Callable[[], None]] = {
    "epochs-fork": epochs,
    "epochs-spawn": lambda: epochs(2, 2, multiprocessing_context="spawn"),
    "epochs-forkserver": lambda: epochs(2, 2, multiprocessing_context="forkserver"),
    "epochs-persistent": lambda: epochs(2, 3, persistent_workers=True),
    "epochs-main": lambda: epochs(0, 2),
    "scaler": scaler,
    "compile": lambda: compiled("default"),
    "reduce-overhead": lambda: compiled("reduce-overhead"),
    "whole-graph": whole_graph,
    "graphed-forward": graphed_forward,
    "side-stream": side_stream,
    "out-of-memory-caught": out_of_memory_caught,
    "out-of-memory": out_of_memory,
    "device-assert": lambda: device_assert(40),
    "device-assert-early": lambda: device_assert(8),
    "not-a-number": not_a_number,
    "own-profiler": own_profiler,
    "forks": forks,
    "pool": pool,
    "saves": saves,
    "fused-in-backward": fused_in_backward,
    "terminated": terminated,
    "ddp": ddp,
    "fsdp": fsdp,
    "rank-fails": rank_fails,
    "trainer": trainer,
    "lightning": lightning,
}
NUM_RANKS = {"ddp": 2, "fsdp": 2, "rank-fails": 2}
ON_GPU_ALONE = frozenset(
    (
        "scaler",
        "compile",
        "reduce-overhead",
        "whole-graph",
        "graphed-forward",
        "side-stream",
        "device-assert",
    )
)


def names() -> list[str]:
    """Of the jobs that this machine can run."""
    return [name for name in JOBS if DEVICE == "cuda" or name not in ON_GPU_ALONE]


def command(name: str) -> list[str]:
    """That starts a job, with a launcher where it has several ranks."""
    job = [os.path.abspath(__file__), name]
    if name not in NUM_RANKS:
        return [sys.executable, *job]
    ranks = ["--standalone", "--nproc_per_node", str(NUM_RANKS[name])]
    return [sys.executable, "-m", "torch.distributed.run", *ranks, *job]


if __name__ == "__main__":
    torch.backends.cudnn.deterministic = True
    JOBS[sys.argv[1]]()
