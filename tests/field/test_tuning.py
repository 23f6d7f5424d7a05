"""Searches over more configurations than anybody sweeps."""

from __future__ import annotations

from stepscope.tune.cli.kernel import read_options


def test_ten_thousand_configurations_are_a_search() -> None:
    """10 x 10 x 10 x 10, as ranges, and a budget of 2,000 trials; what it finds:
    tests/tune/kernels/test_search.py."""
    ranges = [f"--config={name}=0..9" for name in "ABCD"]
    options = read_options(["kernels.py:f", *ranges, "--shapes=64x64", "--trials=2000"])
    assert options.configs is not None
    assert len(options.configs) == 10_000
    assert options.policy.trials == 2000
