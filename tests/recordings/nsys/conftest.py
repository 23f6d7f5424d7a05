"""The demo as nsys would have recorded it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from tests.nsys_files import write_export
from tests.shared_data import DEMO


@pytest.fixture(scope="session")
def demo_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = read_trace(Source(path=DEMO, label="same"), use_cache=False)
    return write_export(trace, tmp_path_factory.mktemp("nsys") / "demo.sqlite")
