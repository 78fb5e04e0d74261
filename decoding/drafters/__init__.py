"""Drafters: one file each. A drafter proposes a tree of tokens that the target then verifies."""
