"""Settings of the whole suite: one thread, no network, hypothesis runs that repeat."""

from __future__ import annotations

import os

import torch
from hypothesis import settings

# Two threads on a busy machine wait for each other: a test took ten times as long.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests may reach for the network

# Derandomised: a failure seen once is seen again. No deadline: a busy machine is not a fault.
settings.register_profile("draftpace", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("draftpace")
