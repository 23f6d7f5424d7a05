"""Lines of MIOpen's find-db, as ROCm/MIOpen writes them: src/conv/problem_description.cpp has the
key (Serialize), src/include/miopen/db_record.hpp the record, perf_field.hpp there the values
(FindDbData), src/db_record.cpp their older order."""

from __future__ import annotations

WAYS = {"F": "Fwd", "B": "BwdData", "W": "BwdWeights"}


def solver(name: str, ms: float | str, workspace: int | str, algorithm: str, way: str = "F") -> str:
    return f"{name}:{ms},{workspace},miopenConvolution{WAYS[way]}Algo{algorithm}"


def old_solver(name: str, ms: float, workspace: int, algorithm: str, way: str = "F") -> str:
    """As it was before April 2023, with a key of the kernel cache that is no longer used."""
    told = f"miopenConvolution{WAYS[way]}Algo{algorithm}"
    return f"{told}:{name},{ms},{workspace},{told},<unused>"


def line(key: str, *solvers: str) -> str:
    return f"{key}={';'.join(solvers)}\n"


PLAIN_KEY = "256-28-28-3x3-256-28-28-64-1x1-1x1-1x1-0-NCHW-BF16-F"
LAST_KEY = "256-28-28-3x3-256-28-28-64-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-BF16-F"
IGEMM = solver("ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC", 0.1, 0, "ImplicitGEMM")
GEMM = solver("GemmFwdRest", 0.4, 7225344, "GEMM")
NAIVE = solver("ConvDirectNaiveConvFwd", 4.0, 0, "Direct")
