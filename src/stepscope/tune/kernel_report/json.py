"""A kernel's tuning as JSON: the document `stepscope.kernel_tuning/1`."""

from __future__ import annotations

from stepscope.core.contract.codec import encode, filled
from stepscope.tune.contract import kernel_tuning as contract
from stepscope.tune.shapes.kernel_tuning import CaseResult, KernelTuning


def kernel_tuning_json(tuning: KernelTuning) -> str:
    """The document as indented text."""
    return encode(kernel_tuning_contract(tuning))


def kernel_tuning_contract(tuning: KernelTuning) -> contract.KernelTuningContract:
    """What was not measured is null, never 0. Configurations are named by their index."""
    return filled(
        contract.KernelTuningContract,
        tuning,
        device=contract.Device(name=tuning.device, kind=tuning.device_kind),
        measured=contract.Measured(
            by=tuning.by, caches=tuning.caches, gradients=tuning.has_gradients
        ),
        check=contract.Check(
            tolerance=tuning.tolerance,
            allowed=tuning.allowed,
            cases=tuning.checked,
            gradients=tuning.gradients_checked,
        ),
        configs=tuning.tryings,
        cases=tuple(_result(result, tuning) for result in tuning.cases),
    )


def _result(result: CaseResult, tuning: KernelTuning) -> contract.Result:
    winner = result.winner
    settings = None if winner is None else tuning.tryings[winner].settings
    return filled(contract.Result, result, settings=settings, speedup=result.gain)
