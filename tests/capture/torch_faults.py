"""Unusual things that a job does with torch's own objects, and with Python: faults of
fault_job.py, which has the loop that they strike in."""

# ruff: noqa: T201

from __future__ import annotations

import copy
import io
import os
import pickle  # noqa: TID251 - a job may
import signal
import sys
import threading
import time
from typing import Any


class _Torch:
    """Imported by the fault that needs it: the job chooses before how much of torch it has."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)


torch: Any = _Torch()
MARK = "FAULT_JOB_AGAIN"


def small(kind: str = "SGD") -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.1)


def step_of(model: Any, optimizer: Any) -> float:
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def closures() -> None:
    """A closure that runs backward passes inside an optimizer's step."""
    model, optimizer = small("LBFGS")

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    print(f"closures {optimizer.step(closure).item():.6f}")


def copies() -> None:
    model, optimizer = small("Adam")
    step_of(model, optimizer)
    pair = copy.deepcopy((model, optimizer))
    print(f"copied {step_of(*pair):.6f} {step_of(model, optimizer):.6f}")
    again = pickle.loads(pickle.dumps((model, optimizer)))  # noqa: S301 - our own
    print(f"pickled {step_of(*again):.6f}")
    file = io.BytesIO()
    torch.save((model, optimizer), file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    print(f"saved {step_of(*saved):.6f}")
    loader = torch.utils.data.DataLoader(range(4), batch_size=2)
    same = pickle.loads(pickle.dumps(copy.deepcopy(loader)))  # noqa: S301 - our own
    print("loader", [batch.tolist() for batch in same])


def by_name() -> None:
    """What is pickled by its name must be found under it: a pool is given such functions."""
    functions = [print, torch.save, torch.autograd.backward, torch.optim.SGD.step]
    functions += [torch.nn.Linear.eval, torch.utils.data.DataLoader.__iter__]
    if torch.distributed.is_available():
        functions += [torch.distributed.all_reduce, torch.distributed.barrier]
    for function in functions:
        again = pickle.loads(pickle.dumps(function))  # noqa: S301 - our own
        print("pickled", function.__qualname__, again is function)


def strange_classes() -> None:
    class Guarded(torch.optim.SGD):  # type: ignore[misc]
        """It has no attribute but those it has."""

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

        def __len__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not to be compared")

        __hash__ = None  # type: ignore[assignment]

    class Strange(torch.utils.data.DataLoader):  # type: ignore[misc]
        """Batches that come by a way of its own."""

        def __iter__(self) -> Any:
            yield from [{"batch": torch.ones(1)}, None]

        def __bool__(self) -> bool:
            raise RuntimeError("not to be asked")

    print("strange", [type(batch).__name__ for batch in Strange([1])])
    model, _ = small()
    optimizer = Guarded(model.parameters(), lr=0.1)
    print(f"guarded {step_of(model, optimizer):.4f}")


def schedulers() -> None:
    model, optimizer = small()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    for _ in range(2):
        scaler.scale(model(torch.ones(2, 4)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
    print("scheduled", seen, scaler.get_scale(), f"{scheduler.get_last_lr()[0]:.4f}")


def checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    model, optimizer = small()
    with torch.autograd.set_detect_anomaly(mode=True, check_nan=True):
        loss = checkpoint(model, torch.ones(2, 4), use_reentrant=True)
        loss = loss.mean() + checkpoint(model, torch.ones(2, 4), use_reentrant=False).mean()
        loss.backward()
    optimizer.step()
    print(f"checkpointed {float(loss.detach()):.6f}")


def inference() -> None:
    model, _ = small()
    with torch.inference_mode():
        loader = torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2)
        print("inferred", [f"{float(model.eval()(batch).mean()):.4f}" for batch in loader])
    model.train()


def deterministic() -> None:
    torch.use_deterministic_algorithms(mode=True)


def other_defaults() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_default_device("cpu")
    torch.set_default_dtype(torch.float32)


def meta_default() -> None:
    """Every tensor that is made without a device has no memory."""
    with torch.device("meta"):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    print("meta", model.weight.device)


def functional() -> None:
    model, _ = small()
    params = dict(model.named_parameters())

    def loss(params: Any, x: Any) -> Any:
        return torch.func.functional_call(model, params, (x,)).mean()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, torch.ones(3, 4))
    print("functional", sorted((name, tuple(grad.shape)) for name, grad in grads.items()))


def scripted() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.ReLU())
    traced = torch.jit.trace(model, torch.ones(2, 4))
    print("traced", traced(torch.ones(3, 4)).shape)


def collective() -> None:
    """A group of one."""
    import tempfile

    distributed = torch.distributed
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step_of(model, optimizer)
        number = torch.ones(1)
        distributed.all_reduce(number)
        distributed.barrier()
        # Before the group: its end would wait for gloo's thread, which may wait for this one.
        del model, optimizer
        distributed.destroy_process_group()
    print("reduced", number.item())


def trains_in_handler() -> None:
    """A signal's handler trains, as one that saves before the end may."""
    pair = small()
    before = signal.signal(signal.SIGUSR1, lambda *_: print(f"handled {step_of(*pair):.6f}"))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def alarms() -> None:
    """A signal every millisecond, from here to the next time."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    is_on = signal.getitimer(signal.ITIMER_REAL)[1] > 0
    every_s = 0.0 if is_on else 0.001
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)


def quick_switches() -> None:
    """Threads change places all the time."""
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=lambda: [torch.ones(9).sum() for _ in range(500)])
    thread.start()
    thread.join()


def forks_of_a_thread() -> None:
    """Another thread forks while this one trains: a lock that is held then stays held there."""
    codes: list[int] = []

    def fork() -> None:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os.write(2, b"")
                os._exit(0)
            codes.append(os.waitpid(child, 0)[1])

    thread, pair = threading.Thread(target=fork), small()
    thread.start()
    while thread.is_alive():
        step_of(*pair)
    print("forked", sum(codes), len(codes))


def daemonized() -> None:
    """Two forks, a session of its own, no file open: as daemons begin."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        os.umask(0o077)
        pair = small()
        for _ in range(12):
            step_of(*pair)
        os.closerange(3, 200)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    os.read(reader, 1)
    os.close(reader)
    print("daemon left")


def replaced() -> None:
    """The process becomes another program, which trains too."""
    sys.stdout.flush()
    if MARK not in os.environ:
        os.environ[MARK] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - as a job does


def hooks_away() -> None:
    import gc

    gc.callbacks.clear()
    gc.disable()
    gc.collect()
    gc.enable()
    sys.excepthook = sys.__excepthook__
    import builtins

    builtins.print = lambda *words: sys.stdout.write(" ".join(map(str, words)) + "\n")  # type: ignore[assignment]


def streams_away() -> None:
    """No stream is left to print to; what it writes comes another way."""
    sys.stdin.close()
    sys.stdout.flush()
    sys.stdout = sys.stderr = open(os.dup(1), "w", encoding="ascii")  # noqa: SIM115


def narrow_umask() -> None:
    os.umask(0o777)


def trains_at_exit() -> None:
    import atexit

    pair = small()
    atexit.register(lambda: print(f"at exit {step_of(*pair):.6f}"))


def slow_threads() -> None:
    """A thread of the job's own, not a daemon, trains on after the main thread has ended."""
    pair = small()

    def train() -> None:
        threading.main_thread().join()
        for _ in range(30):
            step_of(*pair)
            time.sleep(0.001)
        line = f"thread {step_of(*pair):.4f}\n"
        sys.stdout.write(line)  # at once: print writes the line's end apart, and two threads mix
        sys.stdout.flush()

    threading.Thread(target=train).start()


def captured() -> None:
    """A whole step becomes a CUDA graph and is replayed. On the CPU: nothing."""
    if not torch.cuda.is_initialized():
        return
    model = torch.nn.Linear(4, 1).cuda()
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(2, 4, device="cuda")

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(5):
        graph.replay()
    print(f"captured {loss.item():.4f}")


def memory_history() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.memory._record_memory_history(max_entries=100)
        x = torch.ones(1000, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        print("history", x.sum().item(), len(snapshot["device_traces"][0]) > 0)


FAULTS = {
    "captured": ("a CUDA graph is captured and replayed", captured),
    "memory-history": ("the history of CUDA's memory is recorded", memory_history),
    "closures": ("an optimizer's closure runs backward passes (LBFGS)", closures),
    "copies": ("model, optimizer and loader are copied, pickled and saved", copies),
    "by-name": ("functions of torch are pickled by their names", by_name),
    "strange-classes": ("optimizers and loaders that answer no questions", strange_classes),
    "schedulers": ("a scheduler, hooks of a step, a GradScaler", schedulers),
    "checkpointed": ("checkpointing and anomaly detection", checkpointed),
    "inference": ("inference_mode around a loader", inference),
    "deterministic": ("deterministic algorithms", deterministic),
    "defaults": ("another default device and dtype", other_defaults),
    "meta": ("tensors without memory (device meta)", meta_default),
    "functional": ("torch.func: vmap and grad", functional),
    "traced": ("torch.jit", scripted),
    "collective": ("a process group begins and ends", collective),
    "handler": ("a signal's handler trains", trains_in_handler),
    "alarms": ("a signal every millisecond", alarms),
    "switches": ("threads change places all the time", quick_switches),
    "fork-thread": ("another thread forks while the job trains", forks_of_a_thread),
    "daemonize": ("the job makes a daemon, which trains", daemonized),
    "exec": ("os.execv; the program that takes its place trains", replaced),
    "hooks-away": ("gc.callbacks, sys.excepthook and print are replaced", hooks_away),
    "streams": ("stdin is closed, stdout and stderr are replaced", streams_away),
    "umask": ("a umask that forbids everything", narrow_umask),
    "at-exit": ("the job trains in an atexit handler", trains_at_exit),
    "thread-last": ("a thread trains when the main one has ended", slow_threads),
}
