"""The work of an operator: FLOPs and bytes, from its recorded inputs."""
