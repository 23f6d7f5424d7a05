"""The whole account of one layout: each part of memory and of time, with what it is made of in
words and numbers.

Where a part is a count times a size, the size shown is the part over the count: what is printed
multiplies out to the plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepscope.plan.contract.plan import Account
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layouts
from stepscope.plan.model import attention_flops_per_token, product_flops_per_token
from stepscope.plan.network import Group, Network
from stepscope.plan.parameters import fullest_stage, parameters
from stepscope.plan.rates import rates_of
from stepscope.plan.report.account import MEMORY_WORDS, TIME_WORDS
from stepscope.plan.report.words import gib, seconds, short_count
from stepscope.plan.step_time import stalled_s
from stepscope.report.words import NBSP, fixed, number, percent


class Part(Struct, frozen=True):
    """One line of the account."""

    word: str
    value: str
    share: str
    formula: str


def explained(job: TrainingJob, account: Account) -> list[tuple[str, str, list[Part]]]:
    """Title, aside and lines: memory, then time."""
    made = _Made(job, account)
    whole = job.cluster.memory_bytes
    memory = [
        Part(MEMORY_WORDS[name], gib(value), percent(value / whole), made.memory_words(name, value))
        for name, value in account.memory.items()
        if value > 0
    ]
    time = [
        Part(
            TIME_WORDS[name],
            seconds(value),
            percent(value / account.step_s),
            made.time_words(name, value),
        )
        for name, value in sorted(account.time.items(), key=lambda each: -each[1])
        if value > 0
    ]
    shape = ("Layout", str(account.layout), list(made.shape()))
    used = f"{gib(account.memory_bytes)} of {gib(whole)}, {percent(account.memory_bytes / whole)}"
    return [
        shape,
        ("Memory of one device", used, memory),
        ("A step", seconds(account.step_s), time),
    ]


class _Made:
    """Counts that several lines share."""

    def __init__(self, job: TrainingJob, account: Account) -> None:
        self.job, self.account, self.layout = job, account, account.layout
        columns = Layouts.of([account.layout])
        held = parameters(job, columns)
        self.dense, self.routed = float(held.dense[0]), float(held.routed[0])
        self.local = self.dense + self.routed
        self.largest = float(held.largest_layer[0])
        self.layers = float(fullest_stage(job, columns)[0])
        self.width = int(columns.shard_width[0])
        self.tokens = self.layout.micro_batch * job.seq_len / self.layout.cp
        self.network = Network(job.cluster, job.constants)
        rates = rates_of(
            job.cluster, job.precision, job.constants, job.value_bytes, head_dim=job.model.head_dim
        )
        assert rates is not None
        self.rates = rates

    def shape(self) -> Iterator[Part]:
        layout, job = self.layout, self.job
        cut = f"{layout.tp} tensor x {layout.cp} context x {layout.pp} stages x {layout.dp} data"
        yield Part("devices", fixed(layout.num_devices, 0), "", cut)
        batch = (
            f"{layout.dp} data ranks x {layout.num_micro} micro-batches x {layout.micro_batch} of "
            f"{fixed(job.seq_len, 0)} tokens"
        )
        yield Part("sequences", fixed(layout.global_batch, 0), "", batch)
        stage = (
            f"of {short_count(job.model.num_params)}, on the fullest stage of {self.layers:g} "
            "layers"
        )
        yield Part("parameters here", short_count(self.local), "", stage)

    def _again_words(self) -> str:
        layout = self.layout
        if layout.recompute_layers:
            num = f"{layout.recompute_layers} of {self.layers:g}"
            return f"{num} layers of a stage run forward once more"
        if layout.recompute == "full":
            return "layers run forward once more"
        return "the cheap part of layers run once more"

    # Memory.

    def memory_words(self, name: str, value: float) -> str:
        layout, job = self.layout, self.job
        if name in ("weights", "gradients", "optimizer"):
            return self._state_words(name, value)
        if name == "activations":
            each = value / (self.layers * self.tokens)
            kept = {
                "none": "all that backward needs",
                "selective": "attention's inside is made again",
                "full": "each layer's input, and all of the layer at work",
            }
            if layout.recompute_layers:
                kept["full"] = f"{layout.recompute_layers} of {self.layers:g} layers: their input"
            if layout.recompute_every > 1:
                kept["full"] = (
                    f"the input of one layer in {layout.recompute_every}, and all between"
                )
            flight = f"{fixed(self.tokens, 0)} tokens of a micro-batch here, with those in flight"
            return (
                f"{self.layers:g} layers x {flight}: {fixed(each, 0)} bytes a token and layer "
                f"({kept[layout.recompute]})"
            )
        if name == "logits":
            count = self.tokens * job.model.vocab / layout.tp
            return (
                f"{short_count(count)} logits of a micro-batch x {value / count:.3g} bytes: "
                "product, fp32 copy, gradient"
            )
        if name == "gathered":
            return (
                f"layers that are whole just now, {short_count(self.largest)} parameters each, "
                "and their gradients"
            )
        if name == "buffers":
            words = "activations on their way between tensor ranks and between stages"
            return f"DDP's buckets of gradients; {words}" if job.framework.bucket_bytes else words
        if name == "update":
            return (
                "what the optimizer makes while it updates, beyond the room of the activations "
                "that have gone"
            )
        if name == "slack":
            return "reserved by the allocator and in no tensor at the peak"
        return "the driver's context and NCCL, which no allocator counts"

    def _state_words(self, name: str, value: float) -> str:
        is_split = (
            self.layout.zero_stage >= {"weights": 3, "gradients": 2, "optimizer": 1}[name]
            and self.width > 1
        )
        if not is_split:
            return f"{short_count(self.local)} parameters x {value / self.local:.3g} bytes"
        words = f"{short_count(self.dense)} parameters / {self.width} ranks that shard them"
        here = self.dense / self.width
        if self.routed:
            # Ranks that hold other experts cannot share these.
            others = max(1, self.width // self.layout.ep)
            words += f" + {short_count(self.routed)} of experts / {others}"
            here += self.routed / others
        return f"{words} x {value / here:.3g} bytes"

    # Time.

    def time_words(self, name: str, value: float) -> str:
        layout, job = self.layout, self.job
        # An even share of the layers: the fullest stage may have one more.
        per_rank = job.tokens / (layout.dp * layout.cp) / layout.tp / layout.pp
        if name == "gemm":
            head = 2.0 * job.model.vocab * job.model.hidden
            times = 2.0 if job.is_adapter else 3.0
            return self._rate_words(
                times * (product_flops_per_token(job.model) - head) * per_rank, value
            )
        if name == "attention":
            half = 0.5 if job.model.is_causal and layout.is_flash else 1.0
            # One kernel's backward makes the scores again: five products for the forward's two.
            passes = 3.5 if layout.is_flash else 3.0
            flops = passes * attention_flops_per_token(job.model, job.seq_len) * half * per_rank
            kind = "pairs of the causal half" if half < 1 else "every pair"
            return f"{self._rate_words(flops, value)}; {kind}"
        if name == "stream":
            moved, rate = value * self.rates.stream / 1e9, self.rates.stream / 1e9
            return (
                f"norms, activations, residuals, sums: {number(moved)}{NBSP}GB at "
                f"{number(rate)}{NBSP}GB/s"
            )
        return self._comms_words(name) or self._other_words(name)

    def _rate_words(self, flops: float, value: float) -> str:
        rate = flops / value
        share = percent(rate / self.rates.peak)
        return (
            f"about {number(flops / 1e12)}{NBSP}TFLOP at {number(rate / 1e12)}{NBSP}TFLOP/s, "
            f"{share} of the peak"
        )

    def _comms_words(self, name: str) -> str:
        layout, job = self.layout, self.job
        size = self.tokens * job.model.hidden * job.value_bytes
        if name == "tensor_comms":
            calls = 4 * job.model.layers / layout.pp * layout.num_micro
            bus = self._bus(layout.tp, 1, is_gather=layout.is_sequence_parallel)
            return (
                f"{fixed(calls, 0)} collectives of {number(size / 1e6)}{NBSP}MB over {layout.tp} "
                f"ranks, {bus}"
            )
        if name == "context_comms":
            return (
                f"keys and values around {layout.cp} ranks, {self._bus(layout.cp, layout.tp)}, "
                "less what attention hides"
            )
        if name == "expert_comms":
            return f"tokens to experts on {layout.ep} ranks and back, both ways"
        if name == "shard_comms":
            return (
                f"weights gathered and gradients scattered over {self.width} ranks, "
                f"{self._bus(self.width, layout.tp)}, unhidden"
            )
        if name == "pipeline_comms":
            sent = (
                f"{layout.num_micro} micro-batches between {layout.pp} stages, "
                f"{number(size / 1e6)}{NBSP}MB each way"
            )
            stalled = float(stalled_s(job, Layouts.of([layout]))[0])
            return f"{sent}; {seconds(stalled)} of it sends that stall" if stalled else sent
        if name == "data_comms":
            copies = layout.dp * layout.cp
            grads = f"{number(self.dense * job.framework.comm_grad_bytes / 1e9)}{NBSP}GB"
            experts = f" (experts' over {max(1, copies // layout.ep)})" if self.routed else ""
            bus = self._bus(copies, layout.tp, is_gather=layout.zero_stage > 0)
            return (
                f"gradients, {grads}, over {copies} ranks{experts}, {bus}, less what backward hides"
            )
        return ""

    def _bus(self, size: int, stride: int, *, is_gather: bool = True) -> str:
        bus = self.network.bus_bytes_per_s(Group(size, stride), is_gather=is_gather)
        return f"{number(float(bus) / 1e9)}{NBSP}GB/s bus bandwidth"

    def _other_words(self, name: str) -> str:
        layout = self.layout
        if name == "bubble":
            ideal = (layout.pp - 1) / (layout.num_micro * layout.vpp)
            cut = f"{layout.pp} stages, {layout.num_micro} micro-batches, {layout.schedule}"
            return f"{cut}: 1F1B's would be {percent(ideal)} of the work"
        words = {
            "recompute": self._again_words(),
            "head": (
                f"the products with {fixed(self.job.model.vocab, 0)} words, the loss and the "
                "embedding, both ways"
            ),
            "host": "launching takes longer than the device's work",
            "optimizer": "states read and written, and the norm of gradients",
            "offload": "gradients out, the update on the host, weights back",
            "jitter": "ranks wait for the slowest of them",
        }
        return words.get(name, "")
