"""The bodies of the commands: what train.py does once its flags are read. Imports every other room."""
