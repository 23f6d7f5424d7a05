"""Where steps lie, and where their time goes."""
