"""What torch.compile logs and counts."""
