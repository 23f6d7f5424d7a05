"""`stepscope triage`, `attach` and `health`."""
