"""Comparing arms live: the protocol, its statistics and the report. Imports decoding and policies alone."""
