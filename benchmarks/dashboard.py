"""Does every panel of the Grafana dashboard get data from a real Prometheus and a real job?

    python -m benchmarks.dashboard [--seconds 40] [--device cpu|cuda] [--prometheus PATH]

Run it from the root of the repository. Two ranks train under `stepscope run --prometheus`,
Prometheus scrapes them, and each expression of the dashboard, and each of its variables, is asked
of Prometheus as Grafana asks it. Prints a line for each with what came back. The exit code is 1
where one got nothing, but for what a job without a GPU does not measure.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from importlib import resources
from pathlib import Path
from typing import Any

SCRAPE_S = 2
CONFIG = """
global: {{scrape_interval: {scrape_s}s}}
scrape_configs:
  - job_name: stepscope
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""
JOB = """
import os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

until, device = time.time() + float(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
torch.set_num_threads(1)
layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
is_over = torch.zeros(1)
while not is_over:
    for batch, labels in DataLoader(data, batch_size=64):
        loss = torch.nn.functional.cross_entropy(model(batch.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    is_over = torch.tensor([float(time.time() > until)])
    dist.all_reduce(is_over)
"""
NEEDS_GPU = ("stepscope_gpu_utilization_ratio", "stepscope_device_memory_bytes")
LABEL_VALUES = re.compile(r"label_values\((.*), *(\w+)\)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--prometheus", default="prometheus")
    asked = parser.parse_args()
    program = shutil.which(asked.prometheus)
    if program is None:
        sys.exit(f"{asked.prometheus} is not on PATH: install Prometheus, or name it")
    with tempfile.TemporaryDirectory() as name:
        return look(Path(name), program, asked.seconds, asked.device)


def look(folder: Path, program: str, seconds: float, device: str) -> int:
    metrics, port = free_port(), free_port()
    (folder / "job.py").write_text(JOB)
    (folder / "prometheus.yml").write_text(CONFIG.format(port=metrics, scrape_s=SCRAPE_S))
    words = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    server = subprocess.Popen(
        [*words, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stderr=subprocess.DEVNULL
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    recorder = [sys.executable, "-m", "stepscope", "run", "--no-diagnose", "--out", "run"]
    job = subprocess.Popen(
        [*recorder, "--prometheus", str(metrics), "--", *launcher, "job.py", str(seconds), device],
        cwd=folder,
    )
    try:
        until = time.monotonic() + seconds
        while True:
            time.sleep(5)
            lines, num_empty = board_now(f"http://127.0.0.1:{port}/api/v1", device)
            if num_empty == 0 or time.monotonic() > until:
                break
        print("\n".join(lines))
        return 1 if num_empty else 0
    finally:
        job.wait(timeout=120)
        server.terminate()
        server.wait(timeout=30)


def board_now(api: str, device: str) -> tuple[list[str], int]:
    """Asks for everything on the board: a line for each, and how many got nothing."""
    board = json.loads((resources.files("stepscope") / "data" / "grafana.json").read_text("utf-8"))
    lines = []
    for variable in board["templating"]["list"]:
        if isinstance(variable["query"], dict):
            values = label_values(api, variable["query"]["query"])
            state = "ok" if values else "EMPTY"
            lines.append(f"{state:<6} variable {variable['name']}: {values}")
    for panel in board["panels"]:
        for target in panel["targets"]:
            text = all_chosen(target["expr"])
            series = answer(api, "query", query=text)["result"]
            state = "ok" if series else "EMPTY"
            if not series and device == "cpu" and any(name in text for name in NEEDS_GPU):
                state = "no GPU"
            figures = [float(f"{float(each['value'][1]):.4g}") for each in series]
            lines.append(f"{state:<6} {panel['title']} ({target['refId']}): {figures}")
    return lines, sum(line.startswith("EMPTY") for line in lines)


def label_values(api: str, text: str) -> list[str]:
    match = LABEL_VALUES.fullmatch(all_chosen(text))
    assert match is not None, text
    values: list[str] = answer(api, f"label/{match[2]}/values", **{"match[]": match[1]})
    return values


def all_chosen(text: str) -> str:
    """With every variable on All. Grafana takes four scrapes for the least stretch of a rate."""
    return re.sub(r"\$\w+", ".*", text.replace("$__rate_interval", f"{4 * SCRAPE_S}s"))


def answer(api: str, path: str, **query: str) -> Any:
    try:
        with urllib.request.urlopen(f"{api}/{path}?{urllib.parse.urlencode(query)}") as reply:
            return json.load(reply)["data"]
    except urllib.error.HTTPError as problem:
        sys.exit(f"Prometheus refuses {query}: {problem.read().decode()}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
