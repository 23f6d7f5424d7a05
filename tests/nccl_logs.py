"""Small logs in NCCL's and RCCL's forms, of our own making."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stepscope.core.recordings.nccl import NcclLog
from stepscope.readers.format import Source
from stepscope.recordings.nccl.log import read as read_nccl_logs


def info(
    message: str, *, host: str = "n0", pid: int = 10, tid: int | None = None, device: int = 0
) -> str:
    return f"{host}:{pid}:{tid or pid} [{device}] NCCL INFO {message}\n"


def init(rank: int, ranks: int, *, ident: str = "0xabc", end: str = "COMPLETE") -> str:
    return (
        f"ncclCommInitRank comm 0x55{rank} rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId "
        f"60 commId {ident} - Init {end}"
    )


def two_nodes() -> str:
    """Four ranks, two to a node: P2P inside, InfiniBand between; rank 2's network stages through
    the host."""
    lines = [info("NCCL version 2.20.5+cuda12.4")]
    for rank in range(4):
        who = {"host": f"n{rank // 2}", "pid": 10 + rank, "device": rank % 2}
        peer, away = rank ^ 1, (rank + 2) % 4
        direct = "" if rank == 2 else "/GDRDMA"
        messages = [
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
            "Using network IB",
            init(rank, 4, end="START"),
            (
                f"comm 0x55{rank} rank {rank} nRanks 4 nNodes 2 localRanks 2 localRank {rank % 2} "
                "MNNVL 0"
            ),
            *(
                ["Channel 00/02 :    0   1   2   3", "Channel 01/02 :    0   1   2   3"]
                if rank == 0
                else []
            ),
            f"Trees [0] {peer}/-1/-1->{rank}->-1 [1] -1/-1/-1->{rank}->{peer}",
            f"Channel 00/0 : {rank}[{rank % 2}] -> {peer}[{peer % 2}] via P2P/CUMEM/read",
            f"Channel 00/0 : {rank}[0] -> {away}[0] [send] via NET/IB/0(1){direct}/Shared",
            f"Channel 00/0 : {away}[0] -> {rank}[0] [receive] via NET/IB/1{direct}",
            "2 coll channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer",
            init(rank, 4),
        ]
        lines += [info(message, **who) for message in messages]  # type: ignore[arg-type]
    lines.append(info("AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}"))
    lines.append(info("AllReduce: 1024 Bytes -> Algo NVLS_TREE proto LL128 channel{Lo..Hi}={0..0}"))
    lines.append(info("8192 Bytes -> Algo 0 proto 0 time 12.5"))
    return "".join(lines)


def read_text(folder: Path, *texts: str | bytes) -> NcclLog:
    return read_nccl_logs(list(sources(folder, texts)))


def sources(folder: Path, texts: Iterable[str | bytes]) -> Iterable[Source]:
    for number, text in enumerate(texts):
        path = folder / f"nccl.{number}.log"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        yield Source(path=path, label=path.name)
