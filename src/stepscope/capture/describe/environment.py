"""The environment variables that bear on a run's speed,
with whatever looks like a secret left out."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.protocol.secrets import masked

PREFIXES = (
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "TORCH", "PYTORCH_", "TRITON_", "KINETO_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "ROCM_", "AMD_", "MIOPEN_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "LOCAL_", "MASTER_", "PYTHON"),
)
NAMES = {
    "RANK", "WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "TOKENIZERS_PARALLELISM",
    "LD_PRELOAD", "MALLOC_CONF", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS",
    "SLURM_NNODES", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE", "SLURM_JOB_ID", "SLURM_CPU_BIND", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
}  # fmt: skip
MAX_CHARS = 200


def environment_notes(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables worth telling, each at most MAX_CHARS long."""
    return {
        name: masked(name, environ[name])[:MAX_CHARS]
        for name in sorted(environ)
        if (name in NAMES or name.startswith(PREFIXES))
    }
