"""What waits in every Python of a job for torch to be imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from stepscope.capture import site


def finder_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> site.TorchFinder:
    """One that waits for a torch with this text."""
    (tmp_path / "torch.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    finder = site.TorchFinder("run", "package")
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    return finder


def test_who_only_asks_where_torch_is_sees_its_own_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked: list[site.TorchFinder] = []
    monkeypatch.setattr(site, "hook_up", hooked.append)
    finder = finder_of(tmp_path, monkeypatch, "VALUE = 3")
    for _ in range(2):
        asked = importlib.util.find_spec("torch")
        assert asked is not None
        assert type(asked.loader).__name__ == "SourceFileLoader"
    assert not hooked
    assert finder in sys.meta_path
    module = importlib.import_module("torch")
    assert (module.VALUE, hooked, finder in sys.meta_path) == (3, [finder], False)
    assert module.__spec__ is not None
    assert "exec_module" not in vars(module.__spec__.loader)


def test_a_torch_that_cannot_be_imported_hooks_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked: list[site.TorchFinder] = []
    monkeypatch.setattr(site, "hook_up", hooked.append)
    finder_of(tmp_path, monkeypatch, "raise ImportError('not this one')")
    with pytest.raises(ImportError, match="not this one"):
        importlib.import_module("torch")
    assert not hooked


@pytest.mark.parametrize("loader", [None, object()])
def test_a_loader_that_takes_no_attribute_is_left_alone(loader: object) -> None:
    site.hook_up_after(loader, site.TorchFinder("run", "package"))
