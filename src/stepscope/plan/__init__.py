"""A training run before it is paid for: `stepscope plan`.

In come a model, a cluster and a batch, or a recorded run; out go the best layouts with their step
time and memory, and files that launch them. Model x Cluster x Layout -> Estimate is numpy alone
and needs no trace; `cli/` asks, `report/` shows, `contract/` is its JSON. It may import the core;
what the core asks of it is in pyproject.toml's contract `room-plan`, which shrinks.
"""
