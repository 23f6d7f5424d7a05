"""No path leads an agent out of the folders that it was given."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stepscope.doors.mcp.roots import Roots
from stepscope.errors import InputError
from stepscope.protocol.run_folder import write_json
from tests.shared_data import ROOT


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    inside = tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    (inside / "trace.json").write_text("{}")
    (tmp_path / "secret.json").write_text("{}")
    return Roots.of([inside])


def test_paths_inside_are_found(roots: Roots, tmp_path: Path) -> None:
    whole = str((tmp_path / "inside" / "trace.json").resolve())
    for text in ("trace.json", "./trace.json", "deep/../trace.json", whole):
        assert roots.path(text) == whole
    assert roots.path(".") == str(roots.folders[0])


@pytest.mark.parametrize(
    "text",
    [
        "../secret.json",
        "deep/../../secret.json",
        "/etc/passwd",
        "/",
        "..",
        "//etc/passwd",
        "s3://bucket/trace.json",
        "file:///etc/passwd",
        "~/x",
        "a\0b",
        "",
        "x" * 5000,
        "no-such.json",
        "--help",
    ],
)
def test_paths_outside_are_refused(roots: Roots, text: str) -> None:
    with pytest.raises(InputError, match=r"folders .*\bserver\b"):
        roots.path(text)


def test_an_absolute_path_outside_is_refused_though_it_is_there(
    roots: Roots, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="outside"):
        roots.path(str(tmp_path / "secret.json"))


def test_a_folder_whose_name_only_begins_alike_is_outside(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "inside-too").mkdir()
    with pytest.raises(InputError, match="outside"):
        roots.path("../inside-too")


def test_links_are_followed_before_they_are_judged(roots: Roots, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    os.symlink(tmp_path / "secret.json", inside / "link.json")
    os.symlink(tmp_path, inside / "up")
    for text in ("link.json", "up", "up/secret.json"):
        with pytest.raises(InputError, match="outside"):
            roots.path(text)
    # A folder is read with all that is in it.
    with pytest.raises(InputError, match="leads out"):
        roots.path(".")
    (inside / "link.json").unlink()
    (inside / "up").unlink()
    os.symlink(inside / "trace.json", inside / "deep" / "same.json")
    assert roots.path(".") == str(inside.resolve())


def test_runs_go_by_their_names(roots: Roots, tmp_path: Path) -> None:
    kept = tmp_path / "inside" / "stepscope-runs"
    shutil.copytree(ROOT / "tests" / "kept" / "run", kept / "first")
    assert roots.path("last") == str((kept / "first").resolve())
    assert roots.path("first") == str((kept / "first").resolve())
    write_json(kept / "tags.json", {"main": "../../secret.json", "all": "/etc"})
    for tag in ("main", "all"):
        with pytest.raises(InputError, match="outside"):
            roots.path(tag)


def test_a_root_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        Roots.of([tmp_path / "nothing"])
