"""Speculative decoding with a draft length that is decided cycle by cycle. Knows nothing of learning."""
