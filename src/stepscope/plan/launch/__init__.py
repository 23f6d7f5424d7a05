"""From a layout to what a framework is started with, and back: one file for each framework."""
