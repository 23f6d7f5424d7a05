"""The first word of the command line."""

from __future__ import annotations

import pytest

from stepscope.cli.main import main


@pytest.mark.parametrize(
    ("word", "meant"), [("verfy", "verify"), ("tun", "tune"), ("reprot", "report"), ("RUN", "run")]
)
def test_a_mistyped_command_gets_the_near_one_alone(
    capsys: pytest.CaptureFixture[str], word: str, meant: str
) -> None:
    with pytest.raises(SystemExit):
        main([word])
    assert capsys.readouterr().err.endswith(f"Did you mean stepscope {meant}?\n")


def test_a_wrong_option_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["runs", "prune", "--keep", "many"])
    assert capsys.readouterr().err.startswith("stepscope runs prune: error: argument --keep")
