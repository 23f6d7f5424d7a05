"""A run's events as tables: `query`, `export`, and what a person has in a notebook.

In come recordings as the core read them; out go SQL's answers, frames, plots, parquet, and Perfetto
timelines. Heavy packages (DuckDB, pandas, polars, matplotlib) stay behind extras, and are imported
when they are asked for. It may import the core.
"""
