"""What this machine really reaches, as a file for the others.

Matrix products by precision and shape, attention, copies, what a launch costs, how fast the host
is. With --ranks N, or under torchrun, also collectives from 1 KB to 1 GB, with latency and
bandwidth fitted to them: NCCL on GPUs, gloo on CPUs. --nccl-tests reads what all_reduce_perf and
its siblings printed, and measures nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.options import int_in_range
from stepscope.cli.printing import note, print_document, put
from stepscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from stepscope.calibrate.device import Device
    from stepscope.calibrate.sweep import Sweep
    from stepscope.core.calibrated import Calibrated

DEFAULT = Path("stepscope-hardware.json")
PICTURES = (".svg", ".png", ".pdf")
QUIET = "STEPSCOPE_CALIBRATE_QUIET"
"""Name in the environment of ranks that we started: we report what they measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    out: Path = declare.option(
        "--out/-o FILE", f"the hardware file (default: {DEFAULT})", Path, DEFAULT
    )
    quick: bool = declare.option(
        "--quick", "fewer shapes and sizes, fewer repeats: seconds, not minutes"
    )
    device: str | None = declare.option(
        "--device",
        "what to measure (default: a GPU where there is one)",
        choices=("cuda", "cpu"),
    )
    ranks: int | None = declare.option(
        "--ranks N",
        "start N ranks on this machine and measure their collectives too",
        int_in_range("a number of ranks: 2 or more", 2, 4096),
    )
    only: str | None = declare.option(
        "--only", "measure one part alone", choices=("device", "collectives")
    )
    plot: Path | None = declare.option(
        "--plot FILE", "draw points and fitted lines there: .svg, .png or .pdf", Path
    )
    nccl_tests: list[Path] | None = declare.option(
        "--nccl-tests FILE", "read nccl-tests or rccl-tests output instead", Path, nargs="+"
    )


def run(options: Options) -> int:
    _check(options)
    if options.nccl_tests:
        _save(_from_nccl_tests(options.nccl_tests, options.out), options)
        return 0
    measured = _measured(options)
    if measured is not None:
        _save(measured, options)
    return 0


def _check(options: Options) -> None:
    """What can be known to fail is said before minutes of measuring."""
    from stepscope.calibrate.groups import in_job

    for path in (options.out, options.plot):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            what = f"cannot be written: there is no folder {path.parent}"
            if path.is_dir():
                what = "is a folder"
            raise UsageError(f"{path} {what}. Give the path of a file")
    if options.plot is not None:
        from stepscope.core.extras import need

        if options.plot.suffix.casefold() not in PICTURES:
            raise UsageError(f"--plot {options.plot}: the name must end in {', '.join(PICTURES)}")
        with _out_of_folder():
            need("matplotlib.figure", "notebook", "--plot")
    if options.nccl_tests and (options.ranks or options.only or options.device or options.quick):
        raise UsageError(
            "--nccl-tests reads files and measures nothing: leave out --ranks, --only, --device "
            "and --quick"
        )
    if options.ranks and in_job():
        raise UsageError("this process is one of torchrun's ranks already: leave out --ranks")
    if options.only == "device" and options.ranks:
        raise UsageError("--only device measures no collectives: leave out --ranks")
    if options.only == "collectives" and not (options.ranks or in_job()):
        raise UsageError(
            "collectives need several ranks: give --ranks N, or start with torchrun -m stepscope "
            "calibrate"
        )


def _measured(options: Options) -> Calibrated | None:
    """None in ranks that have nothing to write."""
    from stepscope import __version__
    from stepscope.calibrate.device import find_device
    from stepscope.calibrate.groups import in_job, number
    from stepscope.calibrate.measure import joined, measure_device
    from stepscope.calibrate.sweep import sweep_of

    is_job = in_job()
    device = find_device(options.device, number("LOCAL_RANK") if is_job else 0)
    sweep = sweep_of(device.kind, options.quick)
    made_by = f"stepscope {__version__}"
    is_first = not is_job or number("RANK") == 0
    alone = None
    if is_first and options.only != "collectives":
        alone = measure_device(device, sweep, made_by, _say_measuring)
    if options.only == "device" or not (is_job or options.ranks):
        return alone
    links = _in_job(device, sweep, made_by) if is_job else _with_ranks(options)
    if not is_first or links is None:
        return None
    return joined(alone, links) if alone else links


@contextmanager
def _out_of_folder() -> Iterator[None]:
    """Meanwhile matplotlib finds no `matplotlibrc` in the working folder, and no programs."""
    from stepscope.process.isolation import PACKAGES, tool_environment

    here, path = Path.cwd(), os.environ.get("PATH")
    os.environ["PATH"] = tool_environment()["PATH"]
    os.chdir(PACKAGES)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.update({} if path is None else {"PATH": path})


def _in_job(device: Device, sweep: Sweep, made_by: str) -> Calibrated:
    from stepscope.calibrate.groups import join
    from stepscope.calibrate.measure import measure_links
    from stepscope.core.timings import shown_by

    job = join(device)
    try:
        if job.rank == 0:
            return measure_links(job, sweep, made_by, _say_measuring)
        with shown_by(None):
            return measure_links(job, sweep, made_by, _hush)
    finally:
        job.dist.destroy_process_group()


def _with_ranks(options: Options) -> Calibrated:
    """Starts this command again, once per rank; a file of theirs comes back."""
    import tempfile

    from stepscope.process.isolation import isolated_python, tool_environment
    from stepscope.process.job import run_owned
    from stepscope.readers.hardware_file import read_hardware

    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        out = Path(folder) / "links.json"
        rank = isolated_python("stepscope", "calibrate", "--only", "collectives", "--out", str(out))
        rank += ["--quick"] if options.quick else []
        rank += ["--device", options.device] if options.device else []
        ranks = ("--standalone", f"--nproc_per_node={options.ranks}", "--no-python")
        command = isolated_python("torch.distributed.run", *ranks, *rank)
        environment = tool_environment({"OMP_NUM_THREADS": "1", **os.environ, QUIET: "1"})
        # Our stdout is for the answer alone.
        code = run_owned(command, environment, stdout=sys.stderr).exit_code
        if code:
            raise InputError(
                f"the {options.ranks} ranks ended with code {code}: what they said stands "
                "above. Nothing was written"
            )
        return read_hardware(out)


def _from_nccl_tests(paths: Sequence[Path], out: Path) -> Calibrated:
    """The tests' points, beside what a hardware file at --out holds of the device already."""
    from msgspec.structs import replace

    from stepscope import __version__
    from stepscope.calibrate.measure import empty, joined
    from stepscope.calibrate.region_fit import fit_collectives
    from stepscope.core.calibrated import Machine
    from stepscope.readers.hardware_file import read_hardware
    from stepscope.recordings.nccl.tests import read_nccl_tests

    tests = [read_nccl_tests(path) for path in paths]
    points = tuple(point for test in tests for point in test.points)
    machine = Machine(
        kind="unknown",
        device=next((test.device for test in tests if test.device), "unknown"),
        num_ranks=max(point.group_size for point in points),
        num_nodes=max(test.num_nodes for test in tests),
    )
    links = empty(
        machine,
        f"stepscope {__version__}",
        "nccl-tests or rccl-tests; out of place, spread to in place",
    )
    notes = tuple(note for test in tests for note in test.notes)
    links = replace(links, collectives=points, collective_fits=fit_collectives(points), notes=notes)
    if not out.exists():
        return links
    note(f"{out} keeps what it holds of the device; its collectives are the tests' now.")
    return joined(read_hardware(out), links)


def _save(measured: Calibrated, options: Options) -> None:
    from msgspec.structs import replace

    from stepscope.calibrate.hardware_file import save
    from stepscope.calibrate.report import calibration_document
    from stepscope.readers.probe_file import probe_files

    if QUIET in os.environ:
        save(measured, options.out)
        return
    measured = replace(measured, operators=probe_files(measured.machine.device))
    save(measured, options.out)
    print_document(calibration_document(measured))
    timed = sum(len(file.rows) for file in measured.operators)
    with_them = f", with {timed} times of operators that probe measured here" if timed else ""
    put(f"\nWritten to {options.out}{with_them}\n")
    if options.plot is not None:
        from stepscope.calibrate.plot import draw

        draw(measured, options.plot)
        put(f"Drawn in {options.plot}\n")


def _say_measuring(what: str) -> None:
    note(f"measuring {what} ...")


def _hush(what: str) -> None:
    del what
