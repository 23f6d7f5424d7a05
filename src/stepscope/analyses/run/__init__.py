"""The whole run, from what its folder holds."""
