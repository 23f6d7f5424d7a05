"""Jobs: started, watched, ended."""
