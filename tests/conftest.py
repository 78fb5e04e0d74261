"""Settings of the whole suite: one thread, no network, hypothesis runs that repeat."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Two threads on a busy machine wait for each other: a test took ten times as long.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests may reach for the network

# Derandomised: a failure seen once is seen again. No deadline: a busy machine is not a fault.
settings.register_profile("draftpace", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("draftpace")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk; whoever damages it copies it first."""
    from fakes import save_tiny_model  # not above: huggingface_hub reads HF_HUB_OFFLINE when it is imported

    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """A head for it."""
    from fakes import save_tiny_head

    return save_tiny_head(tmp_path_factory.mktemp("head"), folder)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own; the compiled code is still the usual one's."""
    from decoding import native

    native.library()
    monkeypatch.setenv("DRAFTPACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
