"""What is told, as blocks; a renderer each for the terminal, Markdown and HTML."""
