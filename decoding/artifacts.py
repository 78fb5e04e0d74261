"""Files that draftpace writes: whole or not at all, never pickled, checked by SHA-256."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

_ABANDONED_SECONDS = 600


def cache_dir() -> Path:
    """Where converted models and profiles are kept: `$DRAFTPACE_CACHE`, else `~/.cache/draftpace`."""
    named = os.environ.get("DRAFTPACE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "draftpace"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; rename it onto `path` only if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_abandoned(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp (and safetensors) make files that only their owner may read; a result is an ordinary file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        # A rename can reach the disk before the bytes do; after a power cut that is an empty file.
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a full disk does not say where it is
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _clear_abandoned(path: Path) -> None:
    """Remove what a killed process left of an earlier write; young ones may be another process's."""
    for stale in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError):
            if time.time() - stale.stat().st_mtime > _ABANDONED_SECONDS:
                stale.unlink()


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused: they are not JSON."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise ValueError(f"{path} is not written: it would hold a number that is not finite") from None
    write_text(path, text + "\n")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object; `what` names the file's role in the one-line error."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{what} {path} does not exist") from None
    except RecursionError:
        raise ValueError(f"{what} {path} is nested too deeply to be one") from None
    except (ValueError, OSError) as error:  # broken JSON, broken UTF-8, a number of thousands of digits
        raise ValueError(f"{what} {path} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} {path} holds a {type(value).__name__}, not a JSON object")
    return value


def save_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors as safetensors, atomically, copied to the CPU and made contiguous."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary, metadata=metadata or {"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}") from None


def load_tensors(path: Path, what: str) -> dict[str, torch.Tensor]:
    """Read a safetensors file into CPU tensors; `what` names the file's role in the one-line error."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise ValueError(f"{what} {path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{what} {path} is damaged or truncated: {error}") from None


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint_weights(state: Mapping[str, torch.Tensor], salt: str = "") -> str:
    """Short hash of weights, 16 hexadecimal digits: of each tensor's name, shape and up to 1,024 signs.

    Signs survive every rounding, so the same weights have one fingerprint in every dtype and on every device;
    among some 100,000 of them a few change sides in any further training.
    """
    digest = hashlib.sha256(salt.encode())
    for name, tensor in sorted(state.items()):
        values = tensor.flatten()
        signs = values[:: max(1, len(values) // 1024)]
        signs = torch.signbit(signs) if signs.is_floating_point() else signs
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + signs.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
