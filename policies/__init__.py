"""Train policies and export them. Environments come as arguments: this room imports decoding alone."""
