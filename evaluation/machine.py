"""What the machine is and which versions ran: without these a number cannot be compared with another."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import torch

from decoding.machine import cpu_name
from evaluation.schema import Machine

PACKAGES = ("torch", "transformers", "numpy", "scipy", "gymnasium", "stable-baselines3", "safetensors")


def machine_info(device: torch.device | None = None) -> Machine:
    """The machine as it is set up now; `device` is what decodes, None = the CPU."""
    gpu = None
    if device is not None and device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        cpu=cpu_name(), cores=cores, threads=torch.get_num_threads(), gpu=gpu, platform=platform.platform()
    )


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that numbers depend on; None = not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
