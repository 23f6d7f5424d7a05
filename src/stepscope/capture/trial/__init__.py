"""What a trial of `verify`, `fix` and `tune` has beside a recording."""
