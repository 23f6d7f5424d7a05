"""What a command says, as blocks, with a renderer each for the terminal, Markdown and HTML."""
