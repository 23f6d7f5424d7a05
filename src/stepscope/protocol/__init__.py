"""What the capture inside a training job and the rest of stepscope agree on. The standard library
alone is imported here."""
