"""From AMD's counters of one launch to the figures of a KernelMetrics.

The formulas are those of rocprof-compute's speed-of-light panel (ROCm/rocprofiler-compute,
analysis_configs/gfx942 and gfx90a, 0200_system-speed-of-light.yaml). A figure whose counters are
not all there is None.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.api import KernelMetrics

LINE_BYTES = 128
"""Bytes of a line of the L1 and L2 caches, and of one request between them."""
MFMA_FLOPS = 512
"""One count of SQ_INSTS_VALU_MFMA_MOPS_* stands for so many."""
LANES = 64
"""Lanes of a wavefront, on CDNA devices: what an instruction of the vector unit works on."""
SIMDS = 4
"""Matrix units of a compute unit."""
FLOAT_TYPES = ("F16", "F32", "F64")
MATRIX_TYPES = ("BF16", "F16", "F32", "F64")


class Device(Struct, frozen=True, kw_only=True):
    """The sizes that shares are of; None where nothing tells them."""

    name: str | None = None
    num_cus: float | None = None
    clock_mhz: float | None = None
    hbm_gb_s: float | None = None
    num_l2_channels: float | None = None
    num_xcds: float = 1.0


def metrics_of(
    name: str, about: Mapping[str, int], counters: Mapping[str, float], device: Device
) -> KernelMetrics:
    """One launch. `about` has items, group, shared, vector, matrix, start and end,
    where they were recorded."""
    duration = None
    if "start" in about and about.get("end", 0) > about["start"] > 0:
        duration = about["end"] - about["start"]
    group, items = about.get("group"), about.get("items")
    cu_cycles = _cu_cycles(counters, device)
    vector, matrix = about.get("vector"), about.get("matrix", 0)
    read, written = _fabric_read(counters), _fabric_written(counters)
    valu, mfma, others = _pipes(counters, cu_cycles)
    lds, conflicts = counters.get("SQ_LDS_IDX_ACTIVE"), counters.get("SQ_LDS_BANK_CONFLICT")
    l1, l2 = counters.get("TCP_TOTAL_CACHE_ACCESSES_sum"), counters.get("TCC_REQ_sum")
    l1_peak = _times(device.clock_mhz, device.num_cus, LINE_BYTES / 1000)
    l2_peak = _times(device.clock_mhz, device.num_l2_channels, LINE_BYTES / 1000)
    return KernelMetrics(
        name=name,
        duration_ns=duration,
        device=device.name,
        grid=(-(-items // group), 1, 1) if items and group else None,
        block=(group, 1, 1) if group else None,
        registers=None if vector is None else vector + matrix,
        shared_bytes=about.get("shared"),
        num_multiprocessors=None if device.num_cus is None else int(device.num_cus),
        tensor_pipe=mfma,
        fma_pipe=valu,
        compute_throughput=max(
            (share for share in (valu, mfma, *others) if share is not None), default=None
        ),
        dram_throughput=_rate(_plus(read, written), duration, device.hbm_gb_s),
        l1_throughput=_rate(_times(l1, LINE_BYTES), duration, l1_peak),
        l2_throughput=_rate(_times(l2, LINE_BYTES), duration, l2_peak),
        l2_hits=_l2_hits(counters),
        dram_read_bytes=read,
        dram_write_bytes=written,
        shared_wavefronts=lds if conflicts is not None else None,
        shared_wavefronts_ideal=lds - conflicts
        if lds is not None and conflicts is not None and lds >= conflicts
        else None,
        instructions=counters.get("SQ_INSTS"),
        tensor_flops=_times(
            _sum(counters, *(f"SQ_INSTS_VALU_MFMA_MOPS_{kind}" for kind in MATRIX_TYPES)),
            MFMA_FLOPS,
        ),
        vector_flops=_vector_flops(counters),
    )


def _cu_cycles(counters: Mapping[str, float], device: Device) -> float | None:
    """Cycles in which the device was busy, of all compute units. The counter adds up the dies of a
    device."""
    busy = counters.get("GRBM_GUI_ACTIVE")
    return None if not busy or device.num_cus is None else busy / device.num_xcds * device.num_cus


def _pipes(
    counters: Mapping[str, float], cu_cycles: float | None
) -> tuple[float | None, float | None, tuple[float | None, ...]]:
    """How busy the vector unit was, the matrix unit, and the others."""
    valu, scalar = counters.get("SQ_ACTIVE_INST_VALU"), counters.get("SQ_ACTIVE_INST_SCA")
    memory = _sum(counters, "SQ_ACTIVE_INST_FLAT", "SQ_ACTIVE_INST_VMEM")
    mfma = _share(counters.get("SQ_VALU_MFMA_BUSY_CYCLES"), _times(cu_cycles, SIMDS))
    if mfma is None and counters.get("SQ_INSTS_MFMA") == 0:
        mfma = 0.0
    return (
        _share(valu, cu_cycles),
        mfma,
        (_share(scalar, cu_cycles), _share(memory, cu_cycles)),
    )


def _l2_hits(counters: Mapping[str, float]) -> float | None:
    hits, misses = counters.get("TCC_HIT_sum"), counters.get("TCC_MISS_sum")
    return None if hits is None or misses is None or not hits + misses else hits / (hits + misses)


def _fabric_read(counters: Mapping[str, float]) -> float | None:
    """Bytes from the fabric into the L2. MI300 counts requests of 128 bytes too (TCC_BUBBLE)."""
    if "TCC_EA0_RDREQ_sum" in counters:
        requests = counters["TCC_EA0_RDREQ_sum"]
        small, large = counters.get("TCC_EA0_RDREQ_32B_sum"), counters.get("TCC_BUBBLE_sum")
        if small is None or large is None:
            return None
        return max(128 * large + 64 * (requests - large - small) + 32 * small, 0.0)
    every, few = counters.get("TCC_EA_RDREQ_sum"), counters.get("TCC_EA_RDREQ_32B_sum")
    return None if every is None or few is None else max(64 * (every - few) + 32 * few, 0.0)


def _fabric_written(counters: Mapping[str, float]) -> float | None:
    for block in ("EA0", "EA"):
        every = counters.get(f"TCC_{block}_WRREQ_sum")
        large = counters.get(f"TCC_{block}_WRREQ_64B_sum")
        if every is not None and large is not None:
            return max(64 * large + 32 * (every - large), 0.0)
    return None


def _vector_flops(counters: Mapping[str, float]) -> float | None:
    single = _sum(
        counters,
        *(
            f"SQ_INSTS_VALU_{kind}_{size}"
            for kind in ("ADD", "MUL", "TRANS")
            for size in FLOAT_TYPES
        ),
    )
    double = _sum(counters, *(f"SQ_INSTS_VALU_FMA_{size}" for size in FLOAT_TYPES))
    return None if single is None or double is None else LANES * (single + 2 * double)


def _sum(counters: Mapping[str, float], *names: str) -> float | None:
    """None unless every one of them was counted."""
    return (
        sum(counters[name] for name in names) if all(name in counters for name in names) else None
    )


def _times(*factors: float | None) -> float | None:
    product = 1.0
    for factor in factors:
        if factor is None:
            return None
        product *= factor
    return product


def _plus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left + right


def _share(part: float | None, whole: float | None) -> float | None:
    """Share between 0 and 1: counters of one launch are taken in several runs, which differ a
    little."""
    return None if part is None or not whole else min(max(part / whole, 0.0), 1.0)


def _rate(
    size_bytes: float | None, duration_ns: int | None, peak_gb_s: float | None
) -> float | None:
    """Share of a peak: bytes a nanosecond are gigabytes a second."""
    if size_bytes is None or not duration_ns:
        return None
    return _share(size_bytes / duration_ns, peak_gb_s)
