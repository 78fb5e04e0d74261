"""Find and load a target: a built-in name, a folder, a GGUF file or a hub id, all by one call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from decoding import builtin
from decoding.target import TargetModel

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A target with its tokenizer and its generation config's end-of-text ids."""

    name: str
    target: TargetModel
    tokenizer: Any
    end_ids: frozenset[int]


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """`auto` = CUDA if there is one, else the CPU. ValueError if the named device is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"unknown device {device!r}; use auto, cpu, cuda or cuda:N") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    if chosen.type == "cuda" and (not torch.cuda.is_available() or (chosen.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"device {device!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return chosen


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | str:
    """`auto` = the checkpoint's own on CUDA; on CPUs bf16 where the processor multiplies it, else fp32."""
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype == "auto":
        if device.type == "cuda":
            return "auto"
        return torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has bf16 dot products (avx512_bf16 or AMX); without them bf16 is emulated and slow."""
    flags = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    tiles = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool((flags and flags()) or (tiles and tiles()))


def load_model(
    name: str, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"
) -> LoadedModel:
    """Load `name`: `smollm2-135m`, a folder, a `.gguf` file, or a hub id such as `org/model`.

    Raises ValueError with one line that says what is missing and where to get it.
    """
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place)
    source, options = _source(name)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=kind, **options)
    except Exception as error:
        raise ValueError(_explain(name, error)) from error
    model.eval().requires_grad_(False)
    target = TargetModel(model.to(place))
    return LoadedModel(name, target, tokenizer, _end_ids(model, tokenizer))


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """What transformers is asked for, and with which extra arguments."""
    if not name:
        raise ValueError(f"empty model name; use {builtin.NAME}, a folder, a .gguf file or a hub id")
    if name == builtin.NAME:
        return str(builtin.builtin_folder()), {"local_files_only": True}
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"GGUF file {path} does not exist")
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError(f"{path} is not a GGUF file: it does not begin with the bytes 'GGUF'")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"model folder {path} has no config.json")
        return str(path), {"local_files_only": True}
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.is_file():
        raise ValueError(f"model folder {name} does not exist")
    return name, {}


def _explain(name: str, error: Exception) -> str:
    """One line for a model that cannot be loaded."""
    text = " ".join(str(error).split())
    chain = f"{type(error).__name__} {type(error.__cause__).__name__} {text}"
    if Path(name).expanduser().exists() or name == builtin.NAME:
        return f"model {name} is damaged, truncated or of an unsupported kind: {text[:200]}"
    token = "is set" if os.environ.get("HF_TOKEN") else "is not set"
    if "GatedRepo" in chain or "gated" in text or "401" in text or "403" in text:
        return (
            f"model {name} is gated: accept its licence at https://huggingface.co/{name} and set HF_TOKEN "
            f"(it {token})"
        )
    return (
        f"unknown model {name!r}: not {builtin.NAME}, not a folder or .gguf file here, and not to be had from "
        f"https://huggingface.co/{name} (private or gated ones need HF_TOKEN, which {token})"
    )


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a text: the generation config's, else the model config's, else the tokenizer's."""
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
