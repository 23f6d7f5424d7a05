"""Commands: arguments in, exit code out.

In come a command's `Options`, declared as a struct; out go text on the terminal, files that were
asked for, and the exit code. One file has each command of the core; rooms add theirs, and options
to ours, by what they register (`commands.py`, `additions.py`). It imports everything of the core.
"""
