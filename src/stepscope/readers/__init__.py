"""Bytes of a file to what they hold.

In come paths, archives and URLs that a stranger may have made; out go a Trace, a run folder's
records, or another tool's recording. `formats.py` knows every format and imports its reader when a
file of it is there. It imports core, protocol and errors.
"""
