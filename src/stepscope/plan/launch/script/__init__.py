"""What is written into a job's folder as it stands here."""
