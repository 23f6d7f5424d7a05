"""The documents that have a published schema."""

from __future__ import annotations

from stepscope.core.codec import Contract
from stepscope.plan.contract.collective import CollectiveContract
from stepscope.plan.contract.launch import CheckContract, LaunchContract
from stepscope.plan.contract.plan import PlanContract
from stepscope.plan.contract.plan_calibration import PlanCalibration, PlanComparisonContract

DOCUMENTS: tuple[type[Contract], ...] = (
    CheckContract,
    CollectiveContract,
    LaunchContract,
    PlanCalibration,
    PlanComparisonContract,
    PlanContract,
)
