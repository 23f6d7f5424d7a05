"""Jobs that are running: `watch`, `triage`, `attach`, `health`.

In come a run folder that grows, or the processes of a job; out go alerts, a view of every rank, one
verdict in half a minute, stacks compared. `watch/` has the command and where alerts go, `alarms/`
what raises them, `judge/` what triage decides, `cli/`, `report/`, `shapes/` and `contract/` the
rest. It may import the core; what the core and doors/ ask of it is listed in pyproject.toml.
"""
