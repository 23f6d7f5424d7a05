"""What is worth a warning while a job runs, from the numbers its ranks write every second."""
