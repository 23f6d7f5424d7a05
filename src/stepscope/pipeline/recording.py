"""Recording: what some paths hold. It is found once, read once and judged once, whoever asks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analyses.rank_context import RankContext
from stepscope.core.calibrated import Calibrated
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.run import RunFacts, WholeRun
from stepscope.core.timings import stage
from stepscope.errors import InputError
from stepscope.pipeline.contexts import RankContexts
from stepscope.pipeline.measure import measure_job, read_nccl_logs
from stepscope.pipeline.options import Options
from stepscope.pipeline.workers import text_bytes, workers_for
from stepscope.readers.format import Source
from stepscope.readers.inputs import find_sources
from stepscope.readers.probe_file import ProbedDevices
from stepscope.rules.job_case import Job
from stepscope.rules.verdict import diagnose_job

if TYPE_CHECKING:
    from typing_extensions import Self

MIN_KEPT_BYTES = 32 << 20
"""Bytes of the traces' text from which a diagnosis is kept: less is judged within a second."""
HARDWARE_VARIABLE = "STEPSCOPE_HARDWARE"
"""Name in the environment of the hardware file that every command judges by."""


def hardware_file(given: Path | None) -> Path | None:
    """The hardware file to judge by: the one given, else the environment's; None for datasheets."""
    if given is not None:
        return given
    named = os.environ.get(HARDWARE_VARIABLE, "").strip()
    return Path(named) if named else None


class Recording:
    """What these paths hold. A context manager:
    an archive's temporary copy lives until it is left."""

    def __init__(self, paths: Sequence[str | Path], options: Options | None = None) -> None:
        self.options = options or Options()
        self.inputs = find_sources(paths)

    def close(self) -> None:
        """Lets go of temporary files; what was measured stays."""
        self.inputs.close()
        if "contexts" in self.__dict__:
            self.contexts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def auxiliary(self) -> Auxiliary | None:
        """What other tools recorded of the same job."""
        if not self.inputs.others:
            return None
        from stepscope.readers.auxiliary import read_auxiliary

        return read_auxiliary(self.inputs.others)

    @cached_property
    def run(self) -> RunFacts | None:
        """What the folder of a recorded run says besides its traces."""
        if self.inputs.run is None:
            return None
        from stepscope.analyses.run.metadata import run_facts

        return run_facts(self.inputs.run)

    @cached_property
    def hardware(self) -> Calibrated | None:
        """The calibrated machine to judge by:
        the file given, else the one among the recordings, else the environment's."""
        path = self.options.hardware or self._named_hardware() or hardware_file(None)
        if path is None:
            return None
        from stepscope.readers.hardware_file import read_hardware

        return read_hardware(path)

    def _named_hardware(self) -> Path | None:
        """The hardware file that was named among the recordings;
        None where there is none, or several."""
        auxiliary = self.auxiliary
        rates = () if auxiliary is None or auxiliary.system is None else auxiliary.system.rates
        named = [
            Path(rate.path) for rate in rates if rate.is_hardware and Path(rate.path).is_file()
        ]
        return named[0] if len(named) == 1 else None

    @cached_property
    def whole_run(self) -> WholeRun | None:
        """Where the recorded run's time went, with advice on it."""
        if self.inputs.run is None or self.run is None:
            return None
        from stepscope.analyses.run.whole_run import whole_run
        from stepscope.rules.whole_run import advised

        whole = whole_run(self.inputs.run, self.run)
        return None if whole is None else advised(whole, self.run)

    @property
    def step_ns(self) -> int | None:
        """The unprofiled step: as it was given, else as the run's own clock measured it."""
        if self.options.step_ns is not None or self.run is None:
            return self.options.step_ns
        return self.run.step_ns

    @cached_property
    def job(self) -> Job:
        """The measured job. InputError where no trace was named:
        it says what was, and what to name."""
        self.refuse_untraced("A diagnosis needs the run's traces too")
        inputs, options = self.inputs, self.options
        with ExitStack() as stack:
            workers = stack.enter_context(
                workers_for(inputs.sources, options.jobs, options.cluster)
            )
            files = read = None
            if options.progress is not None:
                files, read = stack.enter_context(options.progress(inputs.sources))
            job = measure_job(
                inputs.sources,
                logs=inputs.logs,
                auxiliary=self.auxiliary,
                run=self.run,
                whole_run=self.whole_run,
                workers=workers,
                step_ns=options.step_ns,
                contexts=self.contexts,
                progress=files,
                read_progress=read,
            )
        return replace(job, notes=(*inputs.notes, *job.notes))

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What limits the run; from traces where there are any, else from whatever was recorded."""
        judged = self._judged()
        if self.inputs.run is None or self.run is None:
            return judged
        from stepscope.pipeline.code_changes import with_code_changes

        return with_code_changes(judged, self.inputs.run)

    def _judged(self) -> Diagnosis:
        inputs, work = self.inputs, self.options.work
        if work is not None and (inputs.sources or self.run is not None):
            raise InputError("--devices and --model are for a job's log alone: a trace tells both")
        if inputs.sources:
            return self._of_traces()
        from stepscope.rules.without_trace import diagnose_auxiliary, diagnose_without_trace

        if self.run is not None:
            return diagnose_without_trace(self.run, inputs.notes, self.auxiliary, self.whole_run)
        auxiliary = self.auxiliary or Auxiliary()
        nccl = read_nccl_logs(inputs.logs)
        if not auxiliary.recordings and nccl is None:
            raise InputError("\n  ".join(["nothing could be read:", *auxiliary.notes]))
        return diagnose_auxiliary(
            auxiliary, inputs.notes, nccl, step_ns=self.options.step_ns, work=work
        )

    def _of_traces(self) -> Diagnosis:
        """Diagnosis as it was kept, else judged now."""
        options = self.options
        is_kept = options.use_cache and options.cluster is None and "job" not in self.__dict__
        if not is_kept or text_bytes(self.inputs.sources) < MIN_KEPT_BYTES:
            return self._judged_now()
        from stepscope.pipeline import kept

        key = kept.CacheKey(
            inputs=self.inputs,
            auxiliary=self.auxiliary,
            run=self.run,
            whole_run=self.whole_run,
            hardware=self.hardware,
            step_ms=options.step_ms,
            all_findings=options.all_findings,
        )
        digest = key.digest()
        diagnosis = None if digest is None else kept.load(key, digest)
        if diagnosis is None:
            diagnosis = self._judged_now()
            if digest is not None:
                kept.store(key, digest, diagnosis)
        return diagnosis

    def _judged_now(self) -> Diagnosis:
        job = self.job
        with stage("judge"):
            return diagnose_job(job, every=self.options.all_findings)

    def refuse_untraced(self, needed: str) -> None:
        """InputError where no trace is among what was named: what is, and what `needed` says."""
        if self.inputs.sources:
            return
        if self.inputs.run is not None:
            again = "Run again with --start-step 5, say, and let it get past that step"
            raise InputError(
                f"{self.inputs.run.path}: the profiler recorded no step. {needed}. {again}"
            )
        others = (*self.inputs.logs, *self.inputs.others)
        names = (
            others[0].label if len(others) == 1 else f"{others[0].label} and {len(others) - 1} more"
        )
        alone = "`stepscope diagnose` says what can be said without one"
        raise InputError(
            f"no trace was named, only {names}. {needed}: name them beside it; {alone}"
        )

    @cached_property
    def contexts(self) -> RankContexts:
        """The traces, each parsed once."""
        return RankContexts(
            use_cache=self.options.use_cache, hardware=self.hardware, probed=self.probed.of
        )

    @cached_property
    def probed(self) -> ProbedDevices:
        """What was timed on the recorded devices, and what was asked for."""
        return ProbedDevices(() if self.hardware is None else self.hardware.operators)

    def context(self, source: Source) -> RankContext:
        """A source's events, linked and cut into steps."""
        if self.options.progress is None or self.contexts.has(source):
            return self.contexts.of(source)
        with self.options.progress([source]) as (_, read):
            return self.contexts.of(source, read)


def diagnose(paths: Sequence[str | Path], options: Options | None = None) -> Diagnosis:
    """What limits the run that these paths recorded."""
    with Recording(paths, options) as recording:
        return recording.diagnosis


def measure(paths: Sequence[str | Path], options: Options | None = None) -> Job:
    """The job that these paths recorded, measured and not yet judged."""
    with Recording(paths, options) as recording:
        return recording.job
