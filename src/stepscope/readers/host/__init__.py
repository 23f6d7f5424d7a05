"""Profiles of host code."""
