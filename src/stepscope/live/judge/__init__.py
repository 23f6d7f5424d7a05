"""What limits a running job, seen from outside."""
