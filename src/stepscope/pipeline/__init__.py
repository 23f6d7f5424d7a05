"""From paths to a diagnosis, a page, tables and timelines:
the one way in for every command, notebook and report."""
