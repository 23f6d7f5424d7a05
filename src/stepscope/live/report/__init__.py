"""What is said of a running job."""
