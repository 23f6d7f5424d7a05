"""What real runs gave: trials, comparisons, searches."""
