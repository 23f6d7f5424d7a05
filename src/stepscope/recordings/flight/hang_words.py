"""A hang in a sentence, with what to look at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stepscope.core.numbers import number_ranges, times
from stepscope.core.recordings.nccl import (
    DEVICE,
    NO_DUMP,
    ORDER,
    PEER,
    SIZES,
    TYPES,
    FlightCall,
    FlightDump,
    Hang,
    HangRank,
)
from stepscope.recordings.flight.groups import Disagreement, Wait, calls_at, num_elements

MAX_DETAILS = 8
MIN_WAITED_S = 0.1
"""Seconds below which a dump has no later moment to compare with."""
LOOK = "py-spy dump, its own output"
BRANCH = (
    "a branch on the rank or on its data (if, continue, break, an exception that was caught), or "
    "an input that ended sooner (drop_last=True, the same number of batches, "
    "torch.distributed.algorithms.join)"
)


def ranks_words(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {number_ranges(ranks)}"


def at(call: FlightCall) -> str:
    """` (exchange, train.py:66)`; empty where no stack was dumped."""
    where = call.where_words
    return "" if where is None else f" ({where})"


def call_words(call: FlightCall, group: str) -> str:
    if call.is_p2p:
        return f"{call.op} of {group}"
    return f"{call.op} {call.sequence:,} of {group}"


def of_disagreement(
    disagreement: Disagreement, dumps: Mapping[int, FlightDump], ranks: tuple[HangRank, ...]
) -> Hang:
    (call, many), (other, few) = disagreement.sides[:2]
    is_told = len(many) > len(few)
    group = disagreement.group
    if call.is_p2p:
        units = [_counted(num_elements(each)) for each in (call, other)]
        if disagreement.kind == TYPES:
            units = [_types(each) for each in (call, other)]
        what = (
            f"{ranks_words(many)} sends {units[0]}{at(call)}, and {ranks_words(few)} receives "
            f"{units[1]}{at(other)}"
        )
        action = "let both sides name tensors of one size and dtype, in one order"
    elif disagreement.kind == SIZES:
        what = (
            f"in {call_words(call, group)} {ranks_words(few)} {_verb(few, 'has')} "
            f"{_counted(num_elements(other))}{at(other)} and {ranks_words(many)} "
            f"{num_elements(call):,}{at(call)}"
        )
        action = (
            "give every rank the same number of elements: pad or drop the last batch, and the same "
            "parameters with gradients everywhere"
        )
        if other.where_words != call.where_words:
            action = f"the lines differ: look for {BRANCH}"
    elif disagreement.kind == TYPES:
        what = (
            f"in {call_words(call, group)} {ranks_words(few)} {_verb(few, 'has')} "
            f"{_types(other)}{at(other)} and {ranks_words(many)} {_types(call)}{at(call)}"
        )
        action = "give every rank tensors of one dtype"
    else:
        what = (
            f"{ranks_words(few)} issued {other.op}{at(other)} where {ranks_words(many)} issued "
            f"{call.op}{at(call)}: collective {disagreement.sequence:,} of {group}"
        )
        action = f"find out why {ranks_words(few)} came there instead: {BRANCH}"
    return Hang(
        kind=disagreement.kind,
        summary=f"Hung: {what}.",
        action=action,
        group=group,
        op=call.op,
        sequence=disagreement.sequence,
        where=call.where_words,
        at_fault=few if is_told else (),
        waiting=many,
        ranks=ranks,
        details=tuple(_disagreement_details(disagreement, dumps))[:MAX_DETAILS],
    )


def _disagreement_details(
    disagreement: Disagreement, dumps: Mapping[int, FlightDump]
) -> Iterator[str]:
    (call, many), (other, few) = disagreement.sides[:2]
    if len(many) == len(few):
        yield "as many ranks on one side as on the other: the dumps do not tell whose fault it is"
    mine, theirs = dumps[few[0]], dumps[many[0]]
    if call.where != other.where and mine.is_from_start and theirs.is_from_start:
        counts = calls_at(mine, call), calls_at(theirs, call)
        if counts[0] < counts[1]:
            yield (
                f"rank {few[0]} had issued {call.op}{at(call)} {times(counts[0])} by then, rank "
                f"{many[0]} {times(counts[1])}"
            )
    for call, ranks in disagreement.sides[2:]:
        yield f"{ranks_words(ranks)}: {call.op}{at(call)}, {_counted(num_elements(call))}"
    if disagreement.missing:
        verb = _verb(disagreement.missing, "has")
        yield f"{ranks_words(disagreement.missing)} {verb} not come to it"


def of_missing(
    kind: str,
    at_fault: tuple[int, ...],
    waiting: Sequence[Wait],
    behind: Sequence[Wait],
    dumps: Mapping[int, FlightDump],
    ranks: tuple[HangRank, ...],
) -> Hang:
    first = waiting[0]
    waiters = sorted({wait.rank for wait in waiting})
    who, call = ranks_words(at_fault), first.call
    what = call_words(call, first.group)
    if kind == NO_DUMP:
        summary = (
            f"{who} left no dump, and {ranks_words(waiters)} {_verb(waiters, 'waits')} in {what}"
            f"{at(call)}"
        )
        action = (
            f"{who}: read the end of its own output and its exit code (killed, out of memory, an "
            "exception?); TORCH_NCCL_DUMP_ON_TIMEOUT=1 on every rank"
        )
    elif kind == PEER:
        summary = peer_words(first, who)
        action = f"look at what {who} does instead ({LOOK}): a send has one receive, in one order"
    else:
        summary = (
            f"{who} did not come to {what}, in which {ranks_words(waiters)} "
            f"{_verb(waiters, 'waits')}{at(call)}"
        )
        action = (
            f"look at what {who} {_verb(at_fault, 'does')} after {_last_words(at_fault, dumps)} "
            f"({LOOK}): its input, an exception, another branch"
        )
    details = [_last_detail(rank, dumps, call) for rank in at_fault if rank in dumps]
    details += [
        f"{ranks_words((wait.rank,))} waits in {call_words(wait.call, wait.group)}{at(wait.call)} "
        f"for {ranks_words(wait.missing)}"
        for wait in behind
    ]
    return Hang(
        kind=kind,
        summary=f"Hung: {summary}.",
        action=action,
        group=first.group,
        op=call.op,
        sequence=call.sequence,
        where=call.where_words,
        at_fault=at_fault,
        waiting=tuple(waiters),
        ranks=ranks,
        details=tuple(details)[:MAX_DETAILS],
    )


def peer_words(wait: Wait, who: str) -> str:
    """`rank 1 did not receive what rank 0 sends (pass_on, train.py:81)`."""
    if wait.call.op == "send":
        return f"{who} did not receive what rank {wait.rank} sends{at(wait.call)}"
    return f"{who} did not send what rank {wait.rank} receives{at(wait.call)}"


def of_circle(circle: Sequence[Wait], ranks: tuple[HangRank, ...]) -> Hang:
    """Each waits for the next. A send or receive without its other side explains the circle; else
    it is the order of groups."""
    peer = next((wait for wait in circle if wait.call.is_p2p), None)
    first = circle[0] if peer is None else peer
    waiters = tuple(sorted(wait.rank for wait in circle))
    parts = [
        f"rank {wait.rank} in {call_words(wait.call, wait.group)}{at(wait.call)} for "
        f"{ranks_words(wait.missing)}"
        for wait in circle
    ]
    summary = f"{ranks_words(waiters)} wait for one another: {'; '.join(parts[:4])}"
    action = "enter the groups in one order on every rank"
    if peer is not None:
        other = next(wait for wait in circle if wait is not peer)
        who = ranks_words(peer.missing)
        summary = (
            f"{peer_words(peer, who)}, and rank {other.rank} is in "
            f"{call_words(other.call, other.group)}{at(other.call)}"
        )
        action = f"let {who} make its side before it goes on: a send has one receive, in one order"
    return Hang(
        kind=ORDER if peer is None else PEER,
        summary=f"Hung: {summary}.",
        action=action,
        group=first.group,
        op=first.call.op,
        sequence=first.call.sequence,
        where=first.call.where_words,
        at_fault=() if peer is None else peer.missing,
        waiting=waiters,
        ranks=ranks,
        details=tuple(parts)[:MAX_DETAILS],
    )


def of_all_there(
    kind: str,
    waiting: Sequence[Wait],
    not_begun: tuple[int, ...],
    dumps: Mapping[int, FlightDump],
    ranks: tuple[HangRank, ...],
) -> Hang:
    first = waiting[0]
    waiters = tuple(sorted(wait.rank for wait in waiting))
    what = f"{call_words(first.call, first.group)}{at(first.call)}"
    if kind == DEVICE:
        who = ranks_words(not_begun)
        summary = f"the device of {who} has not begun {what}; {ranks_words(waiters)} are in it"
        action = (
            f"look at what runs before it on the device of {who}: a kernel that does not end, or a "
            "collective of another group (nvidia-smi, cuda-gdb, the device's Xid errors)"
        )
    else:
        few = "all" if len(waiters) == len(dumps) else f"{len(waiters)} of"
        summary = (
            f"{few} {len(dumps)} ranks are in {what} and agree on it, and it has not ended: the "
            "link between them, or a device"
        )
        action = (
            "look at the link: NCCL_DEBUG=WARN, ibstat, the port's error counters, nvidia-smi "
            "nvlink -e, Xid errors in dmesg"
        )
    return Hang(
        kind=kind,
        summary=f"Hung: {summary}.",
        action=action,
        group=first.group,
        op=first.call.op,
        sequence=first.call.sequence,
        where=first.call.where_words,
        at_fault=not_begun,
        waiting=waiters,
        ranks=ranks,
    )


def waited_words(waited_s: float | None, limit_s: float | None) -> str:
    """Whether it is a hang at all: a dump of a job that runs has open collectives too."""
    if waited_s is None or waited_s < MIN_WAITED_S:
        return "how long it was open, these dumps do not tell: of a job that ran on it is no hang"
    limit = "" if limit_s is None else f"; its timeout is {limit_s:,.3g} s"
    if limit_s is None or waited_s < limit_s:
        return f"open for {waited_s:,.3g} s at least{limit}: of a job that ran on it is no hang"
    return f"open for {waited_s:,.3g} s{limit}"


def _last_words(ranks: Sequence[int], dumps: Mapping[int, FlightDump]) -> str:
    last = dumps[ranks[0]].calls[-1]
    return f"{last.op} {last.sequence:,}{at(last)}"


def _last_detail(rank: int, dumps: Mapping[int, FlightDump], waited: FlightCall) -> str:
    """`rank 2's last: all_reduce 6 of default_pg (...), 9.2 s before the others came to this`."""
    dump = dumps[rank]
    last = dump.calls[-1]
    words = f"rank {rank}'s last: {call_words(last, dump.groups[last.group].label)}{at(last)}"
    if last.created_ns is None or waited.created_ns is None:
        return words
    seconds = (waited.created_ns - last.created_ns) / 1e9
    # Ranks of several machines have clocks of their own, some milliseconds apart.
    return words if seconds < 0.5 else f"{words}, {seconds:.3g} s before the others came to this"


def _counted(elements: int) -> str:
    return "1 element" if elements == 1 else f"{elements:,} elements"


def _types(call: FlightCall) -> str:
    return ", ".join(dict.fromkeys(call.input_types)) or "no type"


def _verb(ranks: Sequence[int], verb: str) -> str:
    """Form of a verb for one rank or for several."""
    if len(ranks) == 1:
        return verb
    return {"has": "have", "waits": "wait", "does": "do"}[verb]
