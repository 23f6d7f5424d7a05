"""Nothing of the tree stays behind when it is packed; `scripts/test-artifacts` tries packages."""

from __future__ import annotations

import re
import subprocess

from tests.installed import need
from tests.shared_data import ROOT


def git(*words: str) -> subprocess.CompletedProcess[str]:
    need("a git checkout")
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_source_distribution_has_the_whole_checkout() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    _, _, section = text.partition("[tool.hatch.build.targets.sdist]")
    included = set(re.findall(r'"/([^"]+)"', section[: section.index("]\n")]))
    tracked = {name.partition("/")[0] for name in git("ls-files").stdout.splitlines()}
    # The one that says so is there anyway.
    assert included == tracked - {"pyproject.toml"}


def test_no_name_of_a_package_is_ignored_by_git_and_so_left_out_of_the_wheel() -> None:
    for name in ("build", "dist"):
        assert git("check-ignore", f"src/stepscope/{name}/plan.py").returncode == 1
        assert git("check-ignore", f"{name}/plan.py").returncode == 0


def test_the_tests_of_the_doors_are_there() -> None:
    text = (ROOT / "scripts" / "test-artifacts").read_text(encoding="utf-8")
    doors = text.partition("doors=(")[2].partition(")")[0].split()
    assert doors
    assert [door for door in doors if not (ROOT / door).is_file()] == []
