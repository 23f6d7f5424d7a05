"""Clusters in words.

"8x8xH100", "64xA100-40GB", "2xRTX3090", "8x8xH100@efa", or a path to a file that describes one.
"""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.planner.cluster import Cluster
from stepscope.planner.cluster_toml import read_cluster
from stepscope.planner.devices import make_cluster, shown
from stepscope.planner.networks import on_network

_CLUSTER = re.compile(
    r"(?:(\d{1,9})\s*[xX*\u00d7]\s*)?(?:(\d{1,9})\s*[xX*\u00d7]\s*)?(\S.{0,100})", re.DOTALL
)


def parse_cluster(word: str) -> Cluster:
    """NODESxDEVICESxNAME, DEVICESxNAME, NAME, each with @NETWORK or not, or a path to a .toml
    file.

    Without a number of nodes, devices fill nodes of the usual size: 8 for SXM parts, 4 for cards
    and for GB200 and GB300.
    """
    if word.casefold().endswith(".toml"):
        return read_cluster(Path(word))
    word, has_network, network = word.partition("@")
    if has_network:
        return on_network(parse_cluster(word), network)
    match = _CLUSTER.fullmatch(word.strip())
    if match is None:
        raise UsageError(
            f"a cluster is NODESxDEVICESxNAME, such as 8x8xH100, or a .toml file, not {shown(word)}"
        )
    first, second, name = match.groups()
    if second is not None:
        nodes, per_node = int(first), int(second)
        return make_cluster(name, nodes * per_node, per_node)
    return make_cluster(name, 1 if first is None else int(first))
