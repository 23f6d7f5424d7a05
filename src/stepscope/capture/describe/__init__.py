"""What a trace does not tell: the machine, the models, the settings."""
