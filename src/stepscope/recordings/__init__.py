"""Recordings of other tools, a folder each.

In come the bytes of a file (`readers.source.Source`), out goes a Trace, a recording of its kind
(`core.recordings`) or NCCL's log; each folder has its readers, its words and its rules. They import
`stepscope.api` and what opens strangers' bytes (`readers`); nothing of the core imports them.
"""
