"""Where a head's training stands, as safetensors and JSON: it survives a kill at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from decoding.artifacts import load_tensors, read_json, save_tensors, write_json
from decoding.drafters.eagle_head import EagleHead

HEADER_FILE = "checkpoint.json"

_MOST = 2**53  # steps, seconds: beyond it numbers are no longer exact

# What may differ between a run and its continuation: how long to go on.
_FREE = ("minutes", "patience")


@dataclass(frozen=True, slots=True)
class Best:
    """The best measurement on held-out texts: agreement by draft step, training steps before it (both None
    before the first), how many measurements came after it, and the head's weights then."""

    agreement: tuple[float, ...] | None = None
    step: int | None = None
    since: int = 0
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def after(self, agreement: tuple[float, ...], step: int, head: EagleHead) -> Best:
        """The best when `head` has this agreement: better is a greater sum over the draft steps."""
        if self.agreement is not None and sum(agreement) <= sum(self.agreement):
            return replace(self, since=self.since + 1)
        weights = {name: tensor.detach().clone() for name, tensor in head.state_dict().items()}
        return Best(agreement, step, 0, weights)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a training stands: steps done, the seconds that they took, and the best measurement."""

    step: int
    elapsed: float
    best: Best


def save(
    folder: Path, head: EagleHead, optimizer: torch.optim.Optimizer, place: Place, run: dict[str, Any]
) -> None:
    """Write weights, best weights and optimiser to a file of their own, then the header that names them."""
    tensors = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in place.best.weights.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    file = f"checkpoint-{place.step}.safetensors"
    save_tensors(folder / file, tensors)
    header = {
        "step": place.step,
        "elapsed": place.elapsed,
        "best_agreement": place.best.agreement,
        "best_step": place.best.step,
        "since_best": place.best.since,
        "settings": run,
    }
    write_json(folder / HEADER_FILE, header)
    # The second: what a kill left half written, under the name of a step that may not come again.
    for pattern in ("checkpoint-*.safetensors", ".checkpoint-*.tmp"):
        for old in folder.glob(pattern):
            if old.name != file:
                old.unlink()


def load(
    folder: Path, head: EagleHead, optimizer: torch.optim.Optimizer, run: dict[str, Any]
) -> Place | None:
    """Restore head and optimiser; return the place, None if there is no checkpoint.

    ValueError, in one line, if it is damaged or belongs to another run (`minutes` and `patience` may differ).
    """
    if not (folder / HEADER_FILE).exists():
        return None
    header = read_json(folder / HEADER_FILE, "head checkpoint")
    try:
        step, elapsed, saved = int(header["step"]), float(header["elapsed"]), dict(header["settings"])
        agreement = header["best_agreement"]
        best = Best(
            None if agreement is None else tuple(map(float, agreement)),
            header.get("best_step"),
            int(header["since_best"]),
        )
        # With seconds that are no number the minutes would never be spent. NaN is in no range.
        for name, number in (("step", step), ("elapsed", elapsed), ("since_best", best.since)):
            if not 0 <= number < _MOST:
                raise ValueError(f"{name} is {str(number)[:40]}, must be a number >= 0")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"head checkpoint in {folder} is damaged ({error}): remove it") from None
    changed = [key for key, value in run.items() if key not in _FREE and saved.get(key) != value]
    if changed:
        raise ValueError(f"{folder} was trained with other {', '.join(changed)}; choose another --out")
    tensors = load_tensors(folder / f"checkpoint-{step}.safetensors", "head checkpoint")
    best = replace(best, weights=_named(tensors, "best."))
    try:
        state: dict[int, dict[str, Any]] = {}
        for name, tensor in _named(tensors, "optimizer.").items():
            index, value = name.split(".")
            state.setdefault(int(index), {})[value] = tensor
        if agreement is not None:
            head.load_state_dict(best.weights)  # so that a damaged one is found now
        head.load_state_dict(_named(tensors, "head."))
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError):
        raise ValueError(f"head checkpoint in {folder} does not fit this head: remove it") from None
    return Place(step, elapsed, best)


def _named(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
