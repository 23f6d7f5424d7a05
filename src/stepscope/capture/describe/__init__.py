"""What a trace does not say: the machine, the models, the settings."""
