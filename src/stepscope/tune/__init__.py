"""The best settings of a job, and the fastest form of a kernel, by real trials: `stepscope tune`.

In come a command and its knobs, or a kernel and its variants; out goes a winner that was checked
and proven, and a cache of what was tried. `kernels/` tunes kernels; `cli/` asks, `report/` and
`kernel_report/` show, `contract/` is its JSON. It may import the core, `experiments` above all.
"""
