"""One question, as a user puts it, and all that the answer says."""

from __future__ import annotations

import pytest

from stepscope.cli.main import main


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the command prints, on lines that break no sentence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "220")
        assert main([str(argument) for argument in arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out
