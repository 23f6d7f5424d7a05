"""What a change gives, timed on the device itself: `stepscope probe`, and after `stepscope run`.

In comes a recording; the rules say which operators they would have timed and how (`specs.py`), a
process of the job's own Python times them (`job/`, which needs torch and the standard library
alone), and what it measured is kept in the user's cache (`store.py`). The core reads what is kept
by `core/hardware.py`, and imports nothing of this room.
"""
