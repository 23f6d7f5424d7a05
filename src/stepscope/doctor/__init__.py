"""What this machine allows a profiler.

In come files of the kernel and of the driver, out go checks with what to do about each. It may
import the core.
"""
