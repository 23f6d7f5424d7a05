"""Network ports as a run's ranks sampled them. The samples are formed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.analyses.run.metadata import run_facts
from stepscope.core.run import RunFacts
from stepscope.readers.run_folder.folder import read_run
from stepscope.recordings.network import link_errors, network_congestion
from tests.live_runs import add_samples, add_steps, row, sample, write_rank, write_run
from tests.wording import mentions


def run_with(folder: Path, *counts: dict[str, Any]) -> RunFacts:
    """A rank that sampled a port every ten seconds, and one that did not."""
    run = write_run(folder)
    for number in range(2):
        rank = write_rank(run, number, host="n0")
        add_steps(rank, [row(step) for step in range(20)])
        samples = [
            sample(at * 10.0, at, **({"ib_ports": {"mlx5_0/1": count}} if number == 0 else {}))
            for at, count in enumerate(counts)
        ]
        add_samples(rank, samples)
    return run_facts(read_run(run))


def test_a_link_that_goes_down_during_the_run_is_told_with_its_time(tmp_path: Path) -> None:
    downs = (4, 4, 4, 5, 5, 5)
    facts = run_with(tmp_path, *({"link_downed": down, "port_rcv_data": 1} for down in downs))

    (port,) = facts.ports
    assert (port.name, port.num_samples, port.span_s) == ("mlx5_0/1", 6, 50)
    advice = link_errors.advise_run(facts)
    assert advice is not None
    assert mentions(advice.summary, "went down once", "50 s", "at 30 s")
    assert network_congestion.advise_run(facts) is None


def test_a_quiet_port_and_rubbish_are_no_fault(tmp_path: Path) -> None:
    facts = run_with(tmp_path, {"link_downed": 4}, {"link_downed": 4}, {"link_downed": "x", "?": 1})

    assert link_errors.advise_run(facts) is None


def test_runs_without_such_ports_have_none(tmp_path: Path) -> None:
    assert run_with(tmp_path, {}, {}).ports == ()
