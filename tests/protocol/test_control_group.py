"""The cores and the memory that a control group grants, read from both versions of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.protocol.control_group import cpu_quota, memory_limit, throttle_file


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def test_cpu_quota_is_the_tightest_of_the_group_and_its_parents(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job_7\n",
            "sys/fs/cgroup/slurm/job_7/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/cpu.max": "350000 100000\n",
            "sys/fs/cgroup/slurm/job_7/memory.max": "max\n",
            "sys/fs/cgroup/slurm/memory.max": "8589934592\n",
        },
    )
    assert cpu_quota(root) == 3.5
    assert memory_limit(root) == 8 << 30


def test_cpu_quota_in_a_container_is_read_from_the_top_folder(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"},
    )
    assert cpu_quota(root) == 2.0


def test_cpu_quota_of_the_first_version(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": (
                "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n"
            ),
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/docker/x/cpu.stat": (
                "nr_periods 3\nnr_throttled 1\nthrottled_time 5000000\n"
            ),
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cpu_quota(root) == 1.5
    assert memory_limit(root) is None
    assert throttle_file(root) == root / "sys/fs/cgroup/cpu/docker/x/cpu.stat"


@pytest.mark.parametrize("text", ["", "max 100000", "100000", "100000 0", "x y"])
def test_cpu_quota_without_a_limit_is_none(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    assert cpu_quota(root) is None
