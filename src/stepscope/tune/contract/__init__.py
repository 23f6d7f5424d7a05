"""The JSON of `stepscope tune`, and of what it keeps."""
