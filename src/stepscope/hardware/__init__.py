"""Devices and networks as data, each number with its source.

In comes the name of a device that was recorded; out go its peaks (`lookup`), how its kind is
usually joined (`links`, `networks`), and what a link test reached of that (`link_tests`). It
imports core and errors.
"""
