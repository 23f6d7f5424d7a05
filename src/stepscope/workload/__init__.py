"""The work of an operator: FLOPs and bytes, from its recorded inputs.

In come an operator's name, shapes and types; out goes what it has to compute and to move, or None
where that is not known. A file has each kind: products, convolutions, attention, optimizers. It
imports core and errors.
"""
