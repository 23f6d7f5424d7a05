"""What other tools recorded, in words: a module for each tool, with the lines and tables that every
report shows of it."""
