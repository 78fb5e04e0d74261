"""Where a head's training stands, as safetensors and JSON: it survives a kill at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from decoding.artifacts import load_tensors, read_json, save_tensors, write_json
from decoding.drafters.eagle_head import EagleHead

HEADER_FILE = "checkpoint.json"


def save(
    folder: Path,
    head: EagleHead,
    optimizer: torch.optim.Optimizer,
    step: int,
    elapsed: float,
    run: dict[str, Any],
) -> None:
    """Write weights and optimiser to a file of their own, then the header that names them."""
    tensors = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    file = f"checkpoint-{step}.safetensors"
    save_tensors(folder / file, tensors)
    write_json(folder / HEADER_FILE, {"step": step, "elapsed": elapsed, "settings": run})
    for old in folder.glob("checkpoint-*.safetensors"):
        if old.name != file:
            old.unlink()


def load(
    folder: Path, head: EagleHead, optimizer: torch.optim.Optimizer, run: dict[str, Any]
) -> tuple[int, float] | None:
    """Restore head and optimiser; return (step, seconds of training), None if there is no checkpoint.

    ValueError, in one line, if it is damaged or belongs to another run (only `minutes` may differ).
    """
    if not (folder / HEADER_FILE).exists():
        return None
    place = read_json(folder / HEADER_FILE, "head checkpoint")
    try:
        step, elapsed, saved = int(place["step"]), float(place["elapsed"]), dict(place["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"head checkpoint in {folder} is damaged ({error}): remove it") from None
    changed = [key for key, value in run.items() if key != "minutes" and saved.get(key) != value]
    if changed:
        raise ValueError(f"{folder} was trained with other {', '.join(changed)}; choose another --out")
    tensors = load_tensors(folder / f"checkpoint-{step}.safetensors", "head checkpoint")
    weights = {name.removeprefix("head."): t for name, t in tensors.items() if name.startswith("head.")}
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, field = name.split(".")
            state.setdefault(int(index), {})[field] = tensor
    try:
        head.load_state_dict(weights)
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError):
        raise ValueError(f"head checkpoint in {folder} does not fit this head: remove it") from None
    return step, elapsed
