"""A package outside the repository adds a format, a finding and a command: docs/extend.md's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_data import ROOT
from tests.wording import mentions

PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`([\w./]+)`.*?```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
LINE = "RAM 1903/3964MB (lfb 1x1MB) CPU [10%@921] GR3D_FREQ 99% PLL@40C CPU@50C GPU@{hot}C\n"
PACKAGE = "stepscope_tegrastats"


def install(folder: Path) -> Path:
    """What pip makes of the page's package: its modules, and a dist-info beside them."""
    files = dict(FILES)
    for name in ("log", "hot_board", "door", "command"):
        path = folder / PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[f"{PACKAGE}/{name}.py"], encoding="utf-8")
    (folder / PACKAGE / "__init__.py").write_text("")
    info = folder / f"{PACKAGE}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: stepscope-tegrastats\nVersion: 1\n"
    )
    points = re.findall(r'^"([\w.-]+)" = "(.*)"$', files["pyproject.toml"], re.MULTILINE)
    assert len(points) == 3
    rows = "".join(f"{name} = {value}\n" for name, value in points)
    (info / "entry_points.txt").write_text(f"[stepscope.rooms]\n{rows}")
    return folder


def stepscope(
    *words: str, path: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path}
    main = "import sys; from stepscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", main, *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(install(tmp_path_factory.mktemp("target")))


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "tegrastats.txt"
    path.write_text("".join(LINE.format(hot=hot) for hot in (61.5, 91.0, 80.0)))
    return str(path)


def test_its_format_and_its_finding_are_diagnosed(target: str, log: str) -> None:
    printed = stepscope("diagnose", log, path=target)
    assert printed.returncode == 0, printed.stderr
    assert "hot-board" in printed.stdout
    assert "The board came to 91 C." in printed.stdout
    listed = stepscope("formats", log, path=target).stdout
    assert mentions(listed, "tegrastats", "Jetson")
    assert "Why it costs: from 85 C on" in stepscope("explain", "hot-board", path=target).stdout


def test_its_command_is_run_and_listed(target: str, log: str) -> None:
    assert stepscope("tegrastats", log, path=target).stdout == "91.0 C\n"
    assert "The hottest second of a tegrastats log." in stepscope("--help", path=target).stdout
    assert "LOG" in stepscope("tegrastats", "--help", path=target).stdout


def test_without_the_package_nothing_of_it_is_there(log: str) -> None:
    assert stepscope("diagnose", log).returncode == 2
    assert mentions(stepscope("tegrastats", log).stderr, "not a command")


def test_a_package_in_the_working_folder_is_not_asked(tmp_path: Path, log: str) -> None:
    """`python -c` has the working folder first on its path, and PYTHONPATH may name it."""
    here = install(tmp_path / "checkout")
    for path in ("", str(here), "."):
        refused = stepscope("tegrastats", log, path=path, folder=here)
        assert mentions(refused.stderr, "not a command")
    assert stepscope("tegrastats", log, path=str(here)).stdout == "91.0 C\n"


def test_a_module_in_the_working_folder_does_not_stand_in_for_an_installed_one(
    target: str, tmp_path: Path, log: str
) -> None:
    here = tmp_path / "checkout"
    (here / PACKAGE).mkdir(parents=True)
    (here / PACKAGE / "__init__.py").write_text("print('ran')\n")
    refused = stepscope("tegrastats", log, path=target, folder=here)
    assert "ran" not in refused.stdout
    assert mentions(refused.stderr, "working folder")


def test_what_cannot_be_imported_or_is_taken_is_left_out(tmp_path: Path, log: str) -> None:
    target = install(tmp_path / "target")
    (target / PACKAGE / "hot_board.py").write_text("1 / 0\n")
    door = target / PACKAGE / "door.py"
    door.write_text(door.read_text().replace('"tegrastats"', '"diagnose"'))
    printed = stepscope("diagnose", log, path=str(target))
    assert printed.returncode == 0
    assert "hot-board" not in printed.stdout
    assert "rule.hot-board" in printed.stderr
    assert "ZeroDivisionError" in printed.stderr
    assert mentions(stepscope("--help", path=str(target)).stderr, "command", "diagnose already")


def test_whatever_the_api_names_is_there() -> None:
    code = (
        "import sys, stepscope.api as api; heavy = [m for m in ('numpy', 'msgspec') if m in "
        "sys.modules]; print(heavy, all(getattr(api, name) for name in dir(api)))"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert printed.stdout == "[] True\n"
