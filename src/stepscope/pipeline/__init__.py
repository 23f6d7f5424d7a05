"""The one way from paths to an answer, for every command, notebook and report.

In come paths and `Options`; out go a Job, a Diagnosis, a page's values or a side of a comparison,
each made when it is asked for and once. Files are read in processes of their own, and what was read
or judged is kept in the user's cache. It imports rules, experiments and what lies below.
"""
