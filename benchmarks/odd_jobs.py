"""Odd jobs: what frameworks and people do to the objects that a capture listens to. Each prints the
same every time and ends by itself; those whose package is not installed are left out.

    python -m benchmarks.harm --odd

runs each plain and recorded. They have nothing of ours in them.
"""

from __future__ import annotations

import importlib.util
import sys

COMMON = """
import copy, functools, inspect, logging, os, pickle, signal, sys, threading, traceback, warnings
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self, first=0):
        for number in range(first, first + 3):
            yield torch.full((4,), float(number))
def train(num=12, kind=Own):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = kind(model.parameters(), lr=0.01)
    for _ in range(num):
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
    return float(loss.detach()), model, optimizer
def main():
    BODY
if __name__ == "__main__":
    main()
"""
JOBS: dict[str, tuple[str, str]] = {
    "plain": ("", "print(train()[0])"),
    "cloudpickle-optimizer": (
        "cloudpickle",
        ("import cloudpickle; o = train()[2]; p = cloudpickle.loads(cloudpickle.dumps(o)); "
        "p.step(); print(type(p).__name__)"),
    ),
    "cloudpickle-dataset": (
        "cloudpickle",
        ("import cloudpickle; train(); s = cloudpickle.loads(cloudpickle.dumps(Stream())); "
        "print([x.sum().item() for x in s])"),
    ),
    "cloudpickle-functions": (
        "cloudpickle",
        ("import cloudpickle; train()\n"
        "    for f in (torch.save, torch.autograd.backward, train, nn.Module.eval, print):\n"
        "        print(cloudpickle.loads(cloudpickle.dumps(f)).__name__)"),
    ),
    "dill-optimizer": (
        "dill",
        ("import dill; o = train()[2]; p = dill.loads(dill.dumps(o)); p.step(); "
        "print(type(p).__name__)"),
    ),
    "dask-submit": (
        "distributed",
        ("from distributed import Client\n"
        "    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:\n"
        "        o = train()[2]; print(client.submit(lambda o: type(o).__name__, o).result(), "
        "client.submit(lambda: train()[0]).result())"),
    ),
    "joblib": (
        "joblib",
        (
            "import joblib; train(); call = joblib.delayed(lambda n: train(n)[0])\n"
            "    print(joblib.Parallel(2)(call(n) for n in (3, 4)))"
        ),
    ),
    "loky": (
        "loky",
        ("from loky import get_reusable_executor; train(); "
        "e = get_reusable_executor(max_workers=1); print(e.submit(lambda: train()[0]).result()); "
        "e.shutdown()"),
    ),
    "submitit-local": (
        "submitit",
        ("import submitit, tempfile; train(); e = submitit.LocalExecutor(tempfile.mkdtemp()); "
        "e.update_parameters(timeout_min=1); print(e.submit(lambda: train()[0]).result())"),
    ),
    "ray-task": (
        "ray",
        ("import ray; ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, "
        "logging_level='ERROR'); o = train()[2]; f = ray.remote(lambda o: type(o).__name__); "
        "print(ray.get(f.remote(o))); ray.shutdown()"),
    ),
    "torch-multiprocessing": (
        "",
        ("import torch.multiprocessing as mp; train(2); "
        "mp.spawn(functools.partial(child), nprocs=2); print('spawned')"),
    ),
    "iter-arguments": (
        "",
        "train(); print([x.sum().item() for x in Stream().__iter__(first=2)])",
    ),
    "stream-and-train": (
        "",
        "o = train(2)[2]\n    for x in Stream(): print(x.sum().item()); o.step()",
    ),
    "stream-throw": (
        "",
        ("train(2); it = iter(Stream()); next(it)\n"
        "    try: it.throw(KeyError('mine'))\n"
        "    except KeyError as e: print(e, "
        "[f.name for f in traceback.extract_tb(e.__traceback__)])"),
    ),
    "print-attribute": ("", "Log = type('Log', (), {'log': print}); Log().log('hi'); train(2)"),
    "print-replaced": (
        "",
        ("import builtins; train(2); p = builtins.print; builtins.print = lambda *a: p('!', *a); "
        "print('hi')"),
    ),
    "stdout-names-caller": (
        "",
        ("w = sys.stdout.write\n"
        "    class Out:\n"
        "        flush = staticmethod(lambda: None)\n"
        "        def write(self, text): w(f'{sys._getframe(1).f_code.co_name} {text}')\n"
        "    sys.stdout = Out(); print('x'); train(3); print('y'); sys.stdout = sys.__stdout__"),
    ),
    "warning-stacklevel": (
        "",
        ("class W(torch.optim.SGD):\n"
        "        def step(self, closure=None):\n"
        "            warnings.warn('w', stacklevel=2); return super().step(closure)\n"
        "    with warnings.catch_warnings(record=True) as got:\n"
        "        warnings.simplefilter('always'); train(3, W)\n"
        "    print({(os.path.basename(g.filename), g.lineno) for g in got})"),
    ),
    "traceback-of-step": (
        "",
        ("o = train(2)[2]\n"
        "    try: o.step(lambda: 1 // 0)\n"
        "    except ZeroDivisionError as e:\n"
        "        print([(os.path.basename(f.filename), f.lineno) "
        "for f in traceback.extract_tb(e.__traceback__)][:1], "
        "len(traceback.extract_tb(e.__traceback__)))"),
    ),
    "inspect-source": (
        "",
        ("train(2); print(inspect.getsource(torch.save)[:30], inspect.signature(Own.step), "
        "inspect.getsource(Stream.__iter__)[:30])"),
    ),
    "subclass-of-subclass": (
        "",
        "class Third(Own): pass\n    print(train(5, Third)[0], Third.step is Own.step)",
    ),
    "deepcopy-all": (
        "",
        ("l, m, o = train(); print(type(copy.deepcopy(o)).__name__, copy.copy(torch.save) is "
        "torch.save, copy.deepcopy(Stream()) is not None)"),
    ),
    "monkey-patched-step": (
        "",
        ("class M(torch.optim.SGD): pass\n"
        "    before = torch.optim.SGD.step; calls = []\n"
        "    M.step = lambda self, closure=None: (calls.append(1), before(self, closure))[1]\n"
        "    train(4, M); print(len(calls))"),
    ),
    "monkey-patched-backward": (
        "",
        ("b = torch.autograd.backward; n = []\n"
        "    torch.autograd.backward = lambda *a, **k: (n.append(1), b(*a, **k))[1]\n"
        "    train(4); print(len(n))"),
    ),
    "step-hooks": (
        "",
        ("from torch.optim.optimizer import register_optimizer_step_post_hook as r; n = []\n"
        "    h = r(lambda *a: n.append(1)); train(4); h.remove(); train(2); print(len(n))"),
    ),
    "dispatch-subclass": (
        "",
        ("class W(torch.Tensor):\n"
        "        seen = []\n"
        "        @classmethod\n"
        "        def __torch_function__(cls, f, t, a=(), k=None):\n"
        "            W.seen.append(f.__name__); "
        "return super().__torch_function__(f, t, a, k or {})\n"
        "    p = nn.Parameter(torch.ones(3)); o = torch.optim.SGD([p], lr=0.1)\n"
        "    for _ in range(8): (p * torch.ones(3).as_subclass(W)).sum().backward(); o.step()\n"
        "    print(len(W.seen))"),
    ),
    "alarm-exception": (
        "",
        ("def h(*a): raise TimeoutError('late')\n"
        "    signal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, 0.5)\n"
        "    try:\n"
        "        while True: train(5)\n"
        "    except TimeoutError as e: print(e)"),
    ),
    "interrupt-in-gc": (
        "",
        ("import gc\n"
        "    def h(*a): raise KeyboardInterrupt\n"
        "    signal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "    train(3)\n"
        "    try:\n"
        "        while True: gc.collect()\n"
        "    except KeyboardInterrupt: print('interrupted')"),
    ),
    "settrace": (
        "",
        ("n = []; sys.settrace(lambda f, e, a: n.append(1) if f.f_code.co_name == 'step' "
        "else None); "
        "train(4); sys.settrace(None); print(len(n))"),
    ),
    "recursion-limit": ("", "sys.setrecursionlimit(150); print(train(5)[0])"),
    "compiled-step": (
        "",
        ("l, m, o = train(2); s = torch.compile(o.step, backend='eager')\n"
        "    for _ in range(5): m(torch.ones(1, 4)).sum().backward(); s(); o.zero_grad()\n"
        "    print(sum(float(p.sum().detach()) for p in m.parameters()))"),
    ),
    "compiled-fullgraph": (
        "",
        ("l, m, o = train(2); c = torch.compile(lambda x: m(x).sum(), backend='eager', "
        "fullgraph=True)\n"
        "    for _ in range(5): c(torch.ones(1, 4)).backward(); o.step(); o.zero_grad()\n"
        "    print(float(c(torch.ones(1, 4)).detach()))"),
    ),
    "lbfgs": ("", ("p = nn.Parameter(torch.ones(2)); o = torch.optim.LBFGS([p])\n"
        "    def c(): o.zero_grad(); l = (p * p).sum(); l.backward(); return l\n"
        "    for _ in range(5): print(round(float(o.step(c)), 6))")),
    "threads": (
        "",
        ("ts = [threading.Thread(target=train) for _ in range(3)]\n"
        "    [t.start() for t in ts]; [t.join() for t in ts]; print(threading.active_count())"),
    ),
    "uncaught": ("", "train(3); raise ValueError('mine')"),
    "sys-exit": ("", "train(3); sys.exit(4)"),
    "excepthook": (
        "",
        "sys.excepthook = lambda *a: print('hook', a[0].__name__); train(3); raise ValueError",
    ),
    "fork-and-train": (
        "",
        ("train(3); sys.stdout.flush(); pid = os.fork()\n"
        "    if pid == 0: print(train(3)[0]); sys.stdout.flush(); os._exit(0)\n"
        "    os.waitpid(pid, 0); print('parent')"),
    ),
    "loader-workers": (
        "",
        ("d = torch.utils.data.DataLoader(list(range(8)), num_workers=2, batch_size=2)\n"
        "    train(2); print([x.tolist() for x in d], [x.tolist() for x in d][0])"),
    ),
    "logging-callers": (
        "",
        ("logging.basicConfig(stream=sys.stdout, format='%(funcName)s %(lineno)d %(message)s'); "
        "train(2); logging.warning('here')"),
    ),
    "accelerate": (
        "accelerate",
        ("from accelerate import Accelerator; a = Accelerator(cpu=True)\n"
        "    l, m, o = train(2); d = torch.utils.data.DataLoader(torch.ones(24, 4), batch_size=4)\n"
        "    m, o, d = a.prepare(m, o, d)\n"
        "    for x in d:\n"
        "        loss = m(x).square().mean(); a.backward(loss); o.step(); o.zero_grad()\n"
        "    print(float(loss.detach()), type(a.unwrap_model(m)).__name__)"),
    ),
    "lightning": (
        "lightning",
        ("import lightning as L, tempfile\n"
        "    logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)\n"
        "    class M(L.LightningModule):\n"
        "        def __init__(self): super().__init__(); self.layer = nn.Linear(4, 1)\n"
        "        def training_step(self, batch, _): return self.layer(batch).square().mean()\n"
        "        def configure_optimizers(self): return Own(self.parameters(), lr=0.1)\n"
        "    t = L.Trainer(max_epochs=2, accelerator='cpu', logger=False, "
        "enable_progress_bar=False, default_root_dir=tempfile.mkdtemp(), "
        "enable_model_summary=False)\n"
        "    m = M(); t.fit(m, torch.utils.data.DataLoader(torch.ones(24, 4), batch_size=4))\n"
        "    print(t.global_step, float(m.layer.weight.sum().detach()))"),
    ),
    "hf-trainer": (
        "transformers",
        ("import tempfile; from transformers import PrinterCallback, Trainer, "
        "TrainingArguments\n"
        "    class M(nn.Module):\n"
        "        def __init__(self): super().__init__(); self.layer = nn.Linear(4, 1)\n"
        "        def forward(self, x): return {'loss': self.layer(x).square().mean()}\n"
        "    a = TrainingArguments(tempfile.mkdtemp(), max_steps=12, use_cpu=True, "
        "report_to=[], disable_tqdm=True, save_steps=6, logging_steps=100)\n"
        "    m = M(); t = Trainer(m, a, train_dataset=[{'x': torch.ones(4)}] * 24)\n"
        "    t.remove_callback(PrinterCallback)\n"
        "    t.train(); print(t.state.global_step, float(m.layer.weight.sum().detach()))"),
    ),
    "elastic-restarts": (
        "",
        ("import subprocess, tempfile\n"
        "    if 'RANK' in os.environ:\n"
        "        train(8)\n"
        "        if os.environ['TORCHELASTIC_RESTART_COUNT'] != '2': sys.exit(3)\n"
        "        return print('rank', os.environ['RANK']) if os.environ['RANK'] == '0' else None\n"
        "    done = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', "
        "'--nproc-per-node=2', '--max-restarts=2', '--monitor-interval=0.1', __file__], "
        "stderr=subprocess.DEVNULL); print(done.returncode)"),
    ),
}  # fmt: skip
CHILD = "def child(rank):\n    train(2 + rank)\n"


def names() -> list[str]:
    """Those whose package is there."""
    return [name for name, (need, _) in JOBS.items() if not need or importlib.util.find_spec(need)]


def left_out() -> list[tuple[str, str]]:
    """The others, and what each needs."""
    there = names()
    return [(name, need) for name, (need, _) in JOBS.items() if name not in there]


def command(name: str) -> list[str]:
    text = COMMON.replace("def main():", CHILD + "def main():").replace("BODY", JOBS[name][1])
    return [sys.executable, "-c", _FROM_FILE, text]


_FROM_FILE = """
import os, sys, tempfile
text = sys.argv[1]
folder = tempfile.mkdtemp()
path = os.path.join(folder, "job.py")
open(path, "w").write(text)
os.execv(sys.executable, [sys.executable, path])
"""
"""Jobs are files: their classes are pickled by value and have a source."""
