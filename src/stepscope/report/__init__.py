"""Answers drawn: terminal, Markdown, HTML, JSON.

In come a Diagnosis, a Comparison, a verification; out go a `Document` of blocks (`document/`), a
page (`html/`) or JSON. It computes no more than places and widths of what it draws. It imports
pipeline and what lies below.
"""
