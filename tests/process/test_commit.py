"""The commit of a checkout, read from its files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stepscope.process.commit import commit_of
from tests.installed import need

FIRST, SECOND = "a" * 40, "b" * 40


@pytest.fixture
def git(tmp_path: Path) -> Path:
    made = tmp_path / ".git"
    (made / "refs" / "heads").mkdir(parents=True)
    (made / "HEAD").write_text("ref: refs/heads/main\n")
    return made


def test_a_branch_is_read_from_its_file_else_from_the_packed_names(git: Path) -> None:
    below = git.parent / "src" / "deep"
    below.mkdir(parents=True)
    assert commit_of(below) is None
    (git / "packed-refs").write_text(f"# pack-refs\n{FIRST} refs/heads/main\n^{SECOND}\n")
    assert commit_of(below) == FIRST
    (git / "refs" / "heads" / "main").write_text(f"{SECOND}\n")
    assert commit_of(below) == SECOND
    (git / "HEAD").write_text(f"{FIRST}\n")
    assert commit_of(git.parent) == FIRST


def test_a_worktree_has_its_own_head_and_the_others_names(git: Path, tmp_path: Path) -> None:
    own = git / "worktrees" / "w"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/other\n")
    (own / "commondir").write_text("../..\n")
    (git / "refs" / "heads" / "other").write_text(f"{SECOND}\n")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert commit_of(tree) == SECOND


def test_what_is_no_commit_is_none(git: Path, tmp_path: Path) -> None:
    for head in ("", "ref: ../../secret", "x" * 40, "ref: refs/heads/main"):
        (git / "HEAD").write_text(head)
        assert commit_of(tmp_path) is None
    (git / "HEAD").unlink()
    os.mkfifo(git / "HEAD")
    assert commit_of(tmp_path) is None, "and does not wait for one who writes"


def test_it_is_the_one_that_git_tells(tmp_path: Path) -> None:
    need("git")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert commit_of(tmp_path) == told.stdout.strip()
