"""The weights of a model folder, read from its safetensors files a few at a time."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from decoding.artifacts import read_json

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
# Each of their numbers is an fp32 number as well.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class WeightFiles:
    """One file, or the shards that an index names: transformers' order of search.

    Raises ValueError, here and while reading, with one line for what is missing, damaged or of another kind.
    """

    def __init__(self, folder: Path) -> None:
        self._names: dict[Path, list[str]] = {}
        single, index = folder / _SINGLE, folder / _INDEX
        if single.is_file():
            with _opened(single) as file:
                self._names[single] = list(file.keys())
            return
        shards = read_json(index, "weight index").get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ValueError(f"weight index {index} has no weight_map")
        for name, shard in shards.items():
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise ValueError(f"weight index {index}: {shard!r} is no file beside it")
            self._names.setdefault(folder / shard, []).append(name)

    def read(self, prefix: str) -> dict[str, torch.Tensor]:
        """Copies in fp32 of the weights whose names begin so, by the rest of their names."""
        _give_back()
        found: dict[str, torch.Tensor] = {}
        for path, names in self._names.items():
            wanted = [name for name in names if name.startswith(prefix)]
            if not wanted:
                continue
            # Opened anew each time: what was read counts as this process's memory while the file is mapped.
            with _opened(path) as file:
                for name in wanted:
                    found[name.removeprefix(prefix)] = _copied(file, name, path)
        return found


def _give_back() -> None:
    """Return freed memory to the system. glibc finds no use for most of what torch's aligned tensors leave
    behind: read layer by layer, a model would take half as much again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ValueError(f"weights {path} do not exist") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"weights {path} are damaged or truncated: {error}") from None


def _copied(file: safe_open, name: str, path: Path) -> torch.Tensor:
    try:
        tensor = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"weights {path} are damaged or truncated: {error}") from None
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"weights {path}: {name} is in {tensor.dtype}")
    return tensor.to(torch.float32, copy=True)
