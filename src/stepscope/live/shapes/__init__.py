"""What is known of a running job."""
