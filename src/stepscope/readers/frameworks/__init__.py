"""Logs of training frameworks."""
