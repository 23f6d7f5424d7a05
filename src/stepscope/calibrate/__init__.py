"""What this machine really reaches: `stepscope calibrate`.

In come torch and the devices at hand, alone or under torchrun; out goes a hardware file that
`--hardware` and `plan` read: products, attention, copies, launches and collectives, each with a few
constants fitted to it. It may import the core; the core reads its file by `core/calibrated.py`.
"""
