"""What `stepscope fix` kept, in every form."""
