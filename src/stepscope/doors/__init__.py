"""Other ways in: a page for this machine (`serve`), tools for an agent (`mcp`), trackers.

In come requests of a browser, an agent or a training script; out goes what the commands say, of the
folders that were named and nothing else. Each says no in one place: `serve/server.py` and
`mcp/roots.py`. It may import the core; what it asks of other rooms is listed in pyproject.toml.
"""
