"""The documentation is a site: every page is in its contents, and no link in it leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.installed import need
from tests.shared_data import ROOT

CONTENTS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_page_is_in_the_contents_once() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", CONTENTS, re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | {"rules/index.md"}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    need("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "rules" / "serial-loader" / "index.html").is_file()
    assert (tmp_path / "launch" / "index.html").is_file()
