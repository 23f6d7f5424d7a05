"""The launcher's side: it starts the job, and outlives it."""
