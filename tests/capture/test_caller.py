"""The line of the job's own that called what a hook watches."""

from __future__ import annotations

from pathlib import Path

from stepscope.capture.caller import calling_line


def test_the_innermost_line_of_the_jobs_own_is_named(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "tools" / "saving.py"
    own = tmp_path / "train.py"
    space: dict[str, object] = {"calling_line": calling_line}
    exec(compile("def save():\n    return calling_line()", str(library), "exec"), space)  # noqa: S102
    exec(compile("def main():\n    x = 1\n    return save()", str(own), "exec"), space)  # noqa: S102
    assert callable(space["main"])
    assert space["main"]() == f"{own}(3): main"
