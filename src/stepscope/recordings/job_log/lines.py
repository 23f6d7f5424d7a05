"""The wordings of PyTorch that a job's output is searched for, and what each means.

They were read in the sources of torch 2.13, the older ones in people's reports of them. A mark is a
text that every line of the wording has; the pattern finds where the message begins, and the numbers
in it.
"""

from __future__ import annotations

import re

from msgspec import Struct

from stepscope.core.recordings import job_output

MAX_TEXT = 300


class Wording(Struct, frozen=True, kw_only=True):
    kind: str
    mark: str
    pattern: re.Pattern[str]
    means: str
    is_one: bool = False
    """Written for so many sizes that all of them are counted as the first."""


def _wording(
    kind: str, mark: str, means: str, pattern: str | None = None, *, is_one: bool = False
) -> Wording:
    return Wording(
        kind=kind,
        mark=mark,
        pattern=re.compile(pattern or re.escape(mark)),
        means=means,
        is_one=is_one,
    )


DRIVEN = "nn.DataParallel is in use: one process drives all devices"
IN_FULL = "what was to run in half precision runs in full"
ON_HOST = "the job saw no device it could use: everything ran on the host"
WORKSPACE = (
    r"Solver <[^>\n]{1,120}>, workspace required: (\d{1,18}), provided ptr: \S{1,24} size: "
    r"(\d{1,18})"
)
MIOPEN_WORDINGS = (
    _wording(
        job_output.MIOPEN_NAIVE,
        "Chosen Algorithm: ConvDirectNaiveConv",
        "the fastest that MIOpen found for a convolution is its naive kernel",
        r"Chosen Algorithm: ConvDirectNaiveConv(?:Fwd|Bwd|Wrw)",
        is_one=True,
    ),
    _wording(
        job_output.MIOPEN_LEFT_OUT,
        "[IsEnoughWorkspace] [EvaluateInvokers] ",
        "a search did not try a solver that wants more workspace than it was given",
        rf"\[EvaluateInvokers\] {WORKSPACE}",
        is_one=True,
    ),
    _wording(
        job_output.MIOPEN_PASSED_OVER,
        "[IsEnoughWorkspace] [GetSolution",
        "MIOpen asked of each solver whether it could be taken: no fault by itself",
        rf"\[GetSolution[\w ]{{0,40}}\] {WORKSPACE}",
        is_one=True,
    ),
    _wording(
        job_output.MIOPEN_FAST,
        "MIOPEN_FIND_MODE = FAST",
        "what the find-db lacks is guessed, and not searched for",
    ),
    _wording(
        job_output.MIOPEN_MODE,
        "MIOPEN_FIND_MODE = ",
        "how MIOpen searches: NORMAL tries all, the hybrid modes take what the find-db has, "
        "DYNAMIC_HYBRID tries fewer",
        r"MIOPEN_FIND_MODE = (?!FAST)[A-Z_]{1,24}",
    ),
    _wording(
        job_output.MIOPEN_SEARCHES,
        "Find-db regenerating.",
        "MIOpen times solvers for a convolution: the steps in which it does so are no usual ones",
        is_one=True,
    ),
    _wording(
        job_output.MIOPEN_TUNES,
        ": Searching the best solution among ",
        "MIOpen tunes a solver: minutes, in which no step is a usual one",
        r"\w{1,80}: Searching the best solution among (\d{1,12})",
        is_one=True,
    ),
    _wording(
        job_output.MIOPEN_NO_PARAMETERS,
        "Unable to read system database file:",
        "MIOpen could not read a database that it comes with, of tuned parameters for most: "
        "solvers run with their defaults",
    ),
    _wording(
        job_output.MIOPEN_NO_KERNELS,
        "Missing system database file: ",
        "MIOpen came with no compiled kernels for this device: it compiles them at the start, and "
        "runs no slower after",
    ),
)
"""Of MIOpen 3 (its solver_finders.cpp, convolutionocl.cpp, find_controls.cpp, generic_search.hpp
and sqlite_db.hpp). Warnings are printed by default; what it chose, its find mode and its searches
with MIOPEN_LOG_LEVEL=5."""
WORDINGS = (
    *MIOPEN_WORDINGS,
    _wording(
        job_output.THREADS,
        "Setting OMP_NUM_THREADS environment variable for each process to be",
        "torchrun's default: operators on the host (not the loader's workers) have that many "
        "threads in each process",
        r"Setting OMP_NUM_THREADS environment variable for each process to be (\d{1,6})",
    ),
    _wording(
        job_output.UNUSED_PARAMETERS,
        "find_unused_parameters=True was specified in DDP constructor, but did not find any "
        "unused parameters",
        "DDP walks the autograd graph in every step and finds nothing",
    ),
    _wording(
        job_output.GRADIENT_STRIDES,
        "Grad strides do not match bucket view strides",
        "DDP copies such gradients into its buckets instead of sharing them: often a 1x1 "
        "convolution in channels_last",
    ),
    _wording(
        job_output.WORKERS,
        "worker processes in total. Our suggested max number of worker",
        "a loader has more workers than this process has cores",
        r"This DataLoader will create (\d{1,6}) worker processes in total\."
        r" Our suggested max number of worker in current system is (\d{1,6})",
    ),
    _wording(
        job_output.FP32_PRODUCTS,
        "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled",
        "products of float32 matrices run without tensor cores",
    ),
    _wording(
        job_output.FEW_SMS,
        "enough SMs to use max_autotune_gemm mode",
        "max-autotune leaves matrix products to cuBLAS on a device of few SMs: no fault, and "
        "nothing to gain from the mode",
        r"[Nn]ot enough SMs to use max_autotune_gemm mode",
    ),
    _wording(
        job_output.NO_FLASH,
        "Torch was not compiled with flash attention",
        "this build has no flash kernel: scaled_dot_product_attention takes another",
    ),
    _wording(
        job_output.ATTENTION,
        "kernel not used because:",
        "scaled_dot_product_attention could not take this kernel",
        r"(?:Flash attention|Memory [Ee]fficient(?: attention)?|[Cc]u[Dd][Nn][Nn](?: attention)?) "
        r"kernel not used because:",
    ),
    _wording(
        job_output.DATA_PARALLEL,
        "There is an imbalance between your GPUs. You may want to exclude GPU",
        DRIVEN,
    ),
    _wording(
        job_output.DATA_PARALLEL,
        "Was asked to gather along dimension 0, but all",
        DRIVEN,
    ),
    _wording(
        job_output.NO_GRAPHS,
        "skipping cudagraphs due to",
        "what was to be one launch of a CUDA graph is launched kernel by kernel",
        r"skipping cudagraphs due to .{1,200}",
    ),
    _wording(
        job_output.ANOMALY,
        "Anomaly Detection has been enabled.",
        "every operator of the backward pass is checked, and waited for",
    ),
    _wording(
        job_output.NO_DEVICE,
        "UserWarning: CUDA initialization: ",
        ON_HOST,
        r"CUDA initialization: .{1,200}",
    ),
    _wording(job_output.NO_DEVICE, "GradScaler is enabled, but CUDA is not available", ON_HOST),
    _wording(
        job_output.NO_DEVICE,
        "User provided device_type of 'cuda', but CUDA is not available",
        ON_HOST,
    ),
    _wording(
        job_output.NO_AUTOCAST,
        "autocast, but the target dtype is not supported. Disabling autocast.",
        IN_FULL,
        r"In \w{1,20} autocast, but the target dtype is not supported\. Disabling autocast\.",
    ),
    _wording(
        job_output.NO_AUTOCAST,
        "CUDA is not available or torch_xla is imported. Disabling autocast.",
        IN_FULL,
    ),
    _wording(
        job_output.NO_PINNING,
        "'pin_memory' argument is set as true but",
        "the loader pins nothing: there is no device to copy to, or none that wants it",
    ),
    _wording(
        job_output.NO_GRADIENT,
        "None of the inputs have requires_grad=True. Gradients will be None",
        "a checkpointed part gets no gradient: what it holds is not trained",
    ),
    _wording(
        job_output.CHECKPOINTING,
        "torch.utils.checkpoint: ",
        "activations are computed twice, to save memory; by the older way of doing it unless "
        "use_reentrant=False is said",
        r"torch\.utils\.checkpoint: (?:the use_reentrant parameter should be passed "
        r"explicitly|please pass in use_reentrant)",
    ),
    _wording(
        job_output.NO_EXPANSION,
        "expandable_segments not supported on this platform",
        "the setting has no effect here",
    ),
    _wording(
        job_output.GRAPH_SIZES,
        "Recording too many CUDAGraphs may lead to extra overhead. We have observed",
        "a CUDA graph is recorded anew for each size of the inputs, and each keeps its memory",
        r"CUDAGraph supports dynamic shapes by recording a new graph .{1,200}We have observed "
        r"(\d{1,9}) distinct sizes",
        is_one=True,
    ),
    _wording(
        job_output.NO_SHARED_MEMORY,
        "insufficient shared memory (shm)",
        "batches come from workers through /dev/shm, which is full",
        r"Unexpected bus error encountered in worker\.",
    ),
    _wording(
        job_output.NO_SHARED_MEMORY,
        "is killed by signal: Bus error",
        "batches come from workers through /dev/shm, which is full",
        r"DataLoader worker \(pid \d{1,9}\) is killed by signal: Bus error",
    ),
    _wording(
        job_output.WORKER_KILLED,
        "is killed by signal: Killed",
        "the system ended a worker: host memory ran out, or the container's limit",
        r"DataLoader worker \(pid \d{1,9}\) is killed by signal: Killed",
    ),
    _wording(
        job_output.WORKER_EXITED,
        "exited unexpectedly",
        "a worker is gone, and nothing says why",
        r"DataLoader worker \(pid\(s\) [\d, ]{1,300}\) exited unexpectedly",
    ),
    _wording(
        job_output.NO_FILE_NUMBERS,
        "unable to open shared memory object",
        "each batch that workers hand over holds an open file",
        r"unable to open shared memory object .{1,200}Too many open files",
    ),
    _wording(
        job_output.PROFILER,
        "Profiler clears events at the end of each cycle",
        "each trace holds its own cycle: nothing is wrong",
    ),
)
MEANS = {wording.kind: wording.means for wording in WORDINGS}
HINT = "[__perf_hints]"
"""Lines of the compiler's log, which have a reader of their own."""

TRACED_MARK = ", line "
TRACED = re.compile(r'File "([^"]{1,1000})", line (\d{1,9}), in (\S{1,200})')
TRACEBACK_MARK = "Traceback (most recent call last)"
TORCH_FILE = re.compile(r"(?:(?:site|dist)-packages/|/pytorch/)(?:torch|functorch|triton)/")
BACKWARD_FILE = re.compile(r"/torch/(?:autograd/|_tensor\.py)")
OPTIMIZER_FILE = re.compile(r"/torch/optim/|/bitsandbytes/optim/|/apex/optimizers/")
FORWARD_FILE = re.compile(r"/torch/nn/modules/module\.py")

HUNG_MARK = "Watchdog caught collective operation timeout: "
HUNG = re.compile(
    r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}))?[^)]{0,80}, "
    r"Timeout\(ms\)=(\d{1,12})\)"
)
ENQUEUED_MARK = "ast enqueued NCCL work: "
ENQUEUED = re.compile(
    r"(?:detected by watchdog at work: (\d{1,18}), last|dump signal due to a collective "
    r"timeout.{0,300} Last)"
    r" enqueued NCCL work: (-?\d{1,18})"
)
GROUP = re.compile(r"\[(PG [^\[\]]{1,200}?) ?Rank \d{1,7}\]")
RANKS = (re.compile(r"\[rank(\d{1,7})\]"), re.compile(r"\[(?:PG [^\[\]]{1,200} )?Rank (\d{1,7})\]"))
"""The job's number, which torch writes before its lines; else the one in the group, which for the
whole job's is the same."""
REASON_MARK = "sdp_utils"
REASON = re.compile(r"Warning: (.{1,300}?) \(Triggered internally at [^)]{0,300}sdp_utils")
TRIGGERED = re.compile(r"\s*\(Triggered internally.*$")


def rank_in(text: str) -> int | None:
    """The rank that a line is of, where it says so."""
    match = next((match for pattern in RANKS if (match := pattern.search(text))), None)
    return None if match is None else int(match[1])


def message_of(line: str, start: int) -> str:
    return TRIGGERED.sub("", line[start : start + 2 * MAX_TEXT]).strip()[:MAX_TEXT]
