"""`diagnose --cluster`: the same answer from a real Dask cluster, and words when there is none."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.errors import StepscopeError
from stepscope.pipeline import workers as tasks_module
from stepscope.pipeline import workers as workers_module
from stepscope.pipeline.workers import DiedError, cluster_workers, run_tasks
from tests.builders import tar_bytes
from tests.installed import need
from tests.shared_data import DEMO
from tests.tasks import die_always, die_once, wait_for
from tests.waiting import LONGEST_S, until
from tests.wording import mentions

need("Dask")
# Dask's scheduler and nannies are in this process, and say so where their folders take a second.
pytestmark = pytest.mark.filterwarnings("ignore:Creating scratch directories:UserWarning")


def local_cluster(num_workers: int) -> Any:
    import dask
    import distributed

    # One process imports Dask, and its workers are copies of that one.
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        return distributed.LocalCluster(
            n_workers=num_workers, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1"
        )


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import Dask first, on a machine whose cores others take."""
    monkeypatch.setattr(workers_module, "CONNECT_S", 240)
    monkeypatch.setattr(workers_module, "IDLE_S", 600.0)


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Any]:
    with local_cluster(2) as made:
        yield made


@pytest.fixture
def cluster(shared_cluster: Any) -> Any:
    shared_cluster.scale(2)
    return shared_cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        shutil.copy(DEMO, tmp_path / f"rank{rank}.json.gz")
    (tmp_path / "rank2.json.gz").write_bytes(b"")
    return tmp_path


def diagnosed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["diagnose", *arguments, "--format", "json", "--no-cache"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_local_cluster_gives_what_this_machine_gives(
    cluster: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = diagnosed(capsys, str(folder), "--cluster", cluster.scheduler_address)
    assert far == diagnosed(capsys, str(folder), "--jobs", "1")
    assert [rank["rank"] for rank in far["ranks"]] == [0, 1]
    assert any("rank2.json.gz" in note for note in far["notes"])


def test_a_worker_of_the_cluster_killed_midway_costs_a_retry(cluster: Any, tmp_path: Path) -> None:
    items = [str(tmp_path / "innocent"), str(tmp_path / "marker"), str(tmp_path / "innocent")]
    with cluster_workers(cluster.scheduler_address) as workers:
        results = dict(run_tasks(workers, die_once, items))
    assert (tmp_path / "marker").exists()
    assert sorted(results) == [0, 1, 2]
    assert not any(isinstance(result, DiedError) for result in results.values())


def test_a_task_that_always_kills_is_given_up_by_the_cluster(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that dies takes its neighbour's answer with it, unsent; a worker each, then.
    until(lambda: len(cluster.scheduler.workers) == 2)
    # Dask's own limit is three: a worker more to start for each.
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 1)
    with cluster_workers(cluster.scheduler_address) as workers:
        results = dict(run_tasks(workers, die_always, ["a", "poison"]))
    assert results[0] == "a"
    assert isinstance(results[1], DiedError)


def test_a_cluster_without_workers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "IDLE_S", 0.1)
    with (
        local_cluster(0) as empty,
        pytest.raises(StepscopeError, match="has no workers"),
        cluster_workers(empty.scheduler_address),
    ):
        pass


def test_a_cluster_with_another_version_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "__version__", "9.9")
    with (
        pytest.raises(StepscopeError, match=r"needs stepscope 9\.9"),
        cluster_workers(cluster.scheduler_address),
    ):
        pass


def test_a_cluster_that_loses_its_workers_is_not_waited_for(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of those that share it."""
    monkeypatch.setattr(tasks_module, "POLL_S", 0.1)
    with cluster_workers(cluster.scheduler_address) as workers:
        monkeypatch.setattr(workers_module, "IDLE_S", 0.1)
        cluster.scale(0)
        with pytest.raises(StepscopeError, match="has no workers"):
            dict(run_tasks(workers, wait_for, [("/nowhere", LONGEST_S)]))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x", "tcp://127.0.0.1"])
def test_an_address_without_a_scheduler_is_refused_in_words(
    address: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "CONNECT_S", 1)
    assert main(["diagnose", str(folder), "--cluster", address]) == 2
    said = capsys.readouterr().err
    assert mentions(said, "no Dask scheduler", address)
    assert "Traceback" not in said


def test_without_dask_the_extra_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["diagnose", str(folder), "--cluster", "tcp://127.0.0.1:9"]) == 2
    assert "pip install 'stepscope[cluster]'" in capsys.readouterr().err


def test_what_only_this_machine_sees_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ranks.tar.gz"
    path.write_bytes(tar_bytes({"rank0.json.gz": DEMO.read_bytes()}, mode="w:gz"))
    assert main(["diagnose", str(path), "--cluster", "tcp://127.0.0.1:9"]) == 2
    assert "Unpack it" in capsys.readouterr().err
