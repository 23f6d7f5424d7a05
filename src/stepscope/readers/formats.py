"""Every format that is read: what it is, how to record it, and what it lets us judge. The bytes
decide, not a file's name.

A format's reader is one module in this room, imported when it is needed; it ends with its `READER`
(see format.py). What it reads is a Trace, a recording, or the shape that
`core.recordings.auxiliary.Auxiliary` has for its kind, or an NcclLog.
"""

from __future__ import annotations

from stepscope.core.installed import with_installed
from stepscope.readers.format import Format

JUDGED = (
    "steps",
    "partition",
    "kernels",
    "operators",
    "host",
    "comms",
    "memory",
    "compiler",
    "machine",
)
"""The columns of the matrix: step times; where the step goes; kernels; operators and modules; host
code; collectives; the device's memory; compilation; clocks, power and the host's cores."""
TRACE = "trace"
KERNELS = "kernels"
MEMORY = "memory"
COMPILER = "compiler"
SYSTEM = "system"
TRAINING = "training"
COMMS = "comms"
LOGS = (COMPILER, TRAINING)
"""Kinds that share a file: whatever a job writes to its output."""
AUXILIARY = (KERNELS, MEMORY, COMPILER, SYSTEM, TRAINING)
"""What other tools record, by the fields of `core.recordings.auxiliary.Auxiliary`."""
KINETO, NCCL = "kineto", "nccl-log"


ALL = ("steps", "partition", "kernels", "operators", "host", "comms")
OURS: tuple[Format, ...] = (
    Format(
        name=KINETO,
        words="trace of torch.profiler (JSON, plain or compressed)",
        kind=TRACE,
        record="stepscope run -- python train.py, or torch.profiler's export_chrome_trace",
        judges=(*ALL, "memory"),
        module="stepscope.readers.kineto.trace",
    ),
    Format(
        name="nsys-sqlite",
        words="Nsight Systems, exported to SQLite",
        kind=TRACE,
        record="nsys profile -t cuda,nvtx,osrt,nccl --pytorch=autograd-shapes-nvtx "
        "--cuda-graph-trace=node -o run python train.py; nsys export --type sqlite run.nsys-rep",
        judges=("steps", "partition", "kernels", "operators", "host", "comms"),
        module="stepscope.readers.nsys.sqlite",
        has_parts=True,
    ),
    Format(
        name="nsys-json",
        words="Nsight Systems, exported to JSON (SQLite has more)",
        kind=TRACE,
        record="nsys export --type json run.nsys-rep",
        judges=("steps", "partition", "kernels", "operators", "host", "comms"),
        module="stepscope.readers.nsys.json_lines",
        has_parts=True,
    ),
    Format(
        name="nsys-stats",
        words="tables of nsys stats (CSV)",
        kind=KERNELS,
        record="nsys stats --format csv --report cuda_gpu_kern_sum,nvtx_gpu_proj_sum run.nsys-rep",
        judges=("kernels",),
        module="stepscope.readers.nsys.stats",
    ),
    Format(
        name="ncu-csv",
        words="Nsight Compute, --csv with --page raw or details",
        kind=KERNELS,
        record="ncu --set full --launch-skip 200 --launch-count 50 "
        "--csv --page raw python train.py > ncu.csv",
        judges=("kernels",),
        module="stepscope.readers.ncu.csv",
    ),
    Format(
        name="ncu-rep",
        words="Nsight Compute report (pip install ncu-report)",
        kind=KERNELS,
        record="ncu --set full --launch-skip 200 --launch-count 50 -o run python train.py",
        judges=("kernels",),
        module="stepscope.readers.ncu.report",
    ),
    Format(
        name="rocprofv3-json",
        words="rocprofv3, JSON",
        kind=TRACE,
        record="rocprofv3 --sys-trace --output-format json -- python train.py",
        judges=("partition", "kernels", "host", "comms"),
        module="stepscope.readers.rocm.rocprofv3_json",
    ),
    Format(
        name="rocprof-csv",
        words="rocprofv3, rocprof v1 or v2, CSV",
        kind=TRACE,
        record="rocprofv3 --sys-trace --output-format csv -- python train.py",
        judges=("partition", "kernels", "host"),
        module="stepscope.readers.rocm.csv",
    ),
    Format(
        name="rocprof-stats",
        words="tables of rocprof and rocprofv3 (--stats), CSV",
        kind=KERNELS,
        record="rocprofv3 --kernel-trace --stats --output-format csv -- python train.py",
        judges=("kernels",),
        module="stepscope.readers.rocm.stats",
    ),
    Format(
        name="roctracer-json",
        words="rocprof --hip-trace, JSON",
        kind=TRACE,
        record="rocprof --hip-trace --roctx-trace python train.py",
        judges=("partition", "kernels", "host"),
        module="stepscope.readers.rocm.chrome",
    ),
    Format(
        name="perfetto",
        words="Perfetto protobuf (.pftrace of rocprofv3, of torch.profiler's cupti monitor)",
        kind=TRACE,
        record="rocprofv3 --sys-trace --output-format pftrace -- python train.py",
        judges=("partition", "kernels", "host"),
        module="stepscope.readers.perfetto.trace",
        has_parts=True,
    ),
    Format(
        name="rocprof-compute",
        words="counters of rocprof-compute (omniperf), rocprofv3 --pmc, rocprof v1 -i, CSV",
        kind=KERNELS,
        record="rocprof-compute profile -n run -- python train.py",
        judges=("kernels",),
        module="stepscope.readers.rocm.compute",
    ),
    Format(
        name="flight-recorder",
        words="dumps of PyTorch's flight recorder: pickles, or _dump_fr_trace_json",
        kind=TRAINING,
        record="TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 torchrun train.py; then "
        "/tmp/nccl_trace_rank_*",
        judges=("comms",),
        module="stepscope.readers.flight.dump",
    ),
    Format(
        name="memory-snapshot",
        words="CUDA memory snapshot (torch.cuda.memory._dump_snapshot)",
        kind=MEMORY,
        record="torch.cuda.memory._record_memory_history(); ...; "
        "torch.cuda.memory._dump_snapshot('snapshot.pickle')",
        judges=("memory",),
        module="stepscope.readers.memory.snapshot",
    ),
    Format(
        name="memory-stats",
        words="torch.cuda.memory_stats() as JSON",
        kind=MEMORY,
        record="json.dump(torch.cuda.memory_stats(), open('memory_stats.json', 'w'))",
        judges=("memory",),
        module="stepscope.readers.memory.stats",
    ),
    Format(
        name="memory-timeline",
        words="export_memory_timeline of torch.profiler, raw or JSON",
        kind=MEMORY,
        record="prof.export_memory_timeline('memory.raw.json.gz')",
        judges=("memory",),
        module="stepscope.readers.memory.timeline",
    ),
    Format(
        name="torch-logs",
        words="TORCH_LOGS: recompiles, graph_breaks, perf_hints",
        kind=COMPILER,
        record="TORCH_LOGS=recompiles,graph_breaks,perf_hints python train.py 2> torch_logs.txt",
        judges=("compiler",),
        module="stepscope.readers.compiler.torch_logs",
        is_output=True,
    ),
    Format(
        name="dynamo-counters",
        words="torch._dynamo.utils.counters as JSON",
        kind=COMPILER,
        record="json.dump(torch._dynamo.utils.counters, open('counters.json', 'w'))",
        judges=("compiler",),
        module="stepscope.readers.compiler.dynamo_counters",
    ),
    Format(
        name="kernel-information",
        words="kernel_information.json of Inductor: compiled kernels and their lines",
        kind=COMPILER,
        record="torch._inductor.config.trace.provenance_tracking_level = 1 and "
        "aoti_compile_and_package; then unzip the .pt2",
        judges=("compiler",),
        module="stepscope.readers.compiler.kernel_information",
    ),
    Format(
        name="torch-trace",
        words="structured trace of torch.compile (TORCH_TRACE, tlparse)",
        kind=COMPILER,
        record="TORCH_TRACE=trace_folder python train.py",
        judges=("compiler",),
        module="stepscope.readers.compiler.torch_trace",
    ),
    Format(
        name="nvidia-smi",
        words="nvidia-smi --query-gpu (CSV), nvidia-smi dmon",
        kind=SYSTEM,
        record="nvidia-smi dmon -s pucvmet -o DT > dmon.txt",
        judges=("machine",),
        module="stepscope.readers.system.nvidia_smi",
    ),
    Format(
        name="rocm-smi",
        words="rocm-smi (JSON, CSV, its own table) or amd-smi (JSON, CSV)",
        kind=SYSTEM,
        record="amd-smi monitor --csv > amd_smi.csv",
        judges=("machine",),
        module="stepscope.readers.system.rocm_smi",
    ),
    Format(
        name="dcgm",
        words="dcgmi dmon, or DCGM's metrics for Prometheus",
        kind=SYSTEM,
        record="dcgmi dmon -e 1001,1002,1003,1004,1005,203,100,155,150,112 > dcgm.txt",
        judges=("machine",),
        module="stepscope.readers.system.dcgm",
    ),
    Format(
        name="perf",
        words="perf script, perf stat, perf report",
        kind=SYSTEM,
        record="perf record -g --sample-cpu -p PID -- sleep 10; perf script > perf.txt",
        judges=("host", "machine"),
        module="stepscope.readers.system.perf_text",
    ),
    Format(
        name="top",
        words="top -b",
        kind=SYSTEM,
        record="top -b -d 2 -n 15 -w 200 > top.txt",
        judges=("host", "machine"),
        module="stepscope.readers.host.top",
    ),
    Format(
        name="host-profile",
        words="py-spy (raw, speedscope), export_stacks of torch.profiler, pyinstrument JSON, "
        "viztracer JSON",
        kind=SYSTEM,
        record="py-spy record --native --idle --threads -f speedscope -o host.json -p PID",
        judges=("host",),
        module="stepscope.readers.host.profile",
    ),
    Format(
        name="training-log",
        words="logs of Megatron, torchtitan, DeepSpeed, nanotron, Lightning, HF Trainer",
        kind=TRAINING,
        record="the job's own output, kept in a file",
        judges=("steps", "comms", "memory"),
        module="stepscope.readers.frameworks.log",
        is_output=True,
    ),
    Format(
        name="chakra",
        words="Chakra execution trace (torch.profiler.ExecutionTraceObserver)",
        kind=TRAINING,
        record="torch.profiler.ExecutionTraceObserver().register_callback('et.json')",
        judges=("operators", "comms"),
        module="stepscope.readers.chakra.trace",
    ),
    Format(
        name="topology",
        words="nvidia-smi topo -m, rocm-smi --showtopo",
        kind=SYSTEM,
        record="nvidia-smi topo -m > topo.txt",
        judges=("comms", "machine"),
        module="stepscope.readers.system.nvidia_topo",
    ),
    Format(
        name="measured-rates",
        words="stepscope calibrate's file, or rates of products and copies as JSON",
        kind=SYSTEM,
        record="stepscope calibrate -o machine.json",
        judges=("machine",),
        module="stepscope.readers.system.measured_rates",
    ),
    Format(
        name="job-log",
        words="PyTorch's own warnings in a job's output",
        kind=TRAINING,
        record="torchrun --tee 3 train.py > job.log 2>&1",
        judges=("host", "comms", "memory", "compiler"),
        module="stepscope.readers.job_log.log",
        is_output=True,
    ),
    Format(
        name="port-counters",
        words="perfquery, ibstat, ethtool -S, /sys/class/infiniband, sar -n DEV",
        kind=SYSTEM,
        record="while sleep 10; do date +%s; grep -H . /sys/class/infiniband/*/ports/*/"
        "{counters,hw_counters}/*; done > ports.txt",
        judges=("comms", "machine"),
        module="stepscope.readers.network.counters",
    ),
    Format(
        name="nccl-tests",
        words="output of nccl-tests or rccl-tests (all_reduce_perf and the like)",
        kind=SYSTEM,
        record="all_reduce_perf -b 8 -e 8G -f 2 -g 8 > all_reduce_perf.txt",
        judges=("comms", "machine"),
        module="stepscope.readers.nccl.tests",
        is_output=True,
    ),
    Format(
        name=NCCL,
        words="logs of NCCL and RCCL",
        kind=COMMS,
        record="NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log python train.py",
        judges=("comms",),
        module="stepscope.readers.nccl.log",
        is_output=True,
    ),
)
FORMATS = with_installed(OURS, "format", lambda form: form.name)
BY_NAME = {each.name: each for each in FORMATS}
