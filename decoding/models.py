"""Find and load a target: a built-in name, a folder, a GGUF file or a hub id, all by one call."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from decoding import builtin, proof
from decoding.extra_layers import add_extra_layers, check_count, label
from decoding.light import LightTarget, load_tokenizer
from decoding.machine import cpu_has_bfloat16, resolve_device, resolve_dtype
from decoding.target import TargetModel

PATHS = ("auto", "fast", "eager")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A target with its tokenizer and its generation config's end-of-text ids."""

    name: str
    target: TargetModel
    tokenizer: Any
    end_ids: frozenset[int]

    def tokenizer_fingerprint(self) -> str:
        """Short hash of the token strings and their ids: 16 hexadecimal digits."""
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
        return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:16]


def load_model(
    name: str,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    path: str = "auto",
    extra_layers: int = 0,
) -> LoadedModel:
    """Load `name`: `smollm2-135m`, a folder, a `.gguf` file, or a hub id such as `org/model`.

    Args:
        name: see above.
        device, dtype: `auto` = CUDA if there is one; fp32 on the fast path, else see `resolve_dtype`.
        path: `fast` = native code runs the target on the CPU, see `TargetModel.use_fast_path`; `eager` =
            transformers does; `auto` = fast where it can be.
        extra_layers: synthetic: so many that make it slower and change nothing else, see `extra_layers.py`.

    Raises ValueError with one line that says what is missing and where to get it.
    """
    if path not in PATHS:
        raise ValueError(f"path is {path!r}, must be one of {', '.join(PATHS)}")
    check_count(extra_layers)
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place)
    if str(dtype) == "auto" and place.type == "cpu" and path != "eager":
        # Native code computes in fp32 and reads bf16 weights as such: faster than bf16 products for few rows.
        kind = torch.float32
    # A proof is of the folder's own layers.
    light = path != "eager" and place.type == "cpu" and kind == torch.float32 and not extra_layers
    if light and (found := _load_light(name)) is not None:
        return found
    source, options = _source(name)
    # Before anything is read: a file that changes meanwhile is not what was proved.
    key = proof.key_of(Path(source)) if light and _is_folder(name) else None
    tokenizer, model = _load_ordinary(name, source, options, kind)
    add_extra_layers(model, extra_layers)
    target = TargetModel(model.to(place), extra_layers=extra_layers)
    wanted = path == "fast" or (path == "auto" and place.type == "cpu" and target.dtype == torch.float32)
    if wanted and not target.use_fast_path():
        if path == "fast":
            raise ValueError(f"model {name} cannot take the fast path: {target.slow_reason}; use path eager")
        if str(dtype) == "auto" and cpu_has_bfloat16():
            reason = target.slow_reason
            target = TargetModel(model.to(torch.bfloat16), extra_layers=extra_layers)
            target.slow_reason = reason
    end_ids = _end_ids(model, tokenizer)
    if key is not None and target.fast is not None and proof.find(key) is None:
        proof.prove(key, Path(source), target, tokenizer, end_ids)
    return LoadedModel(label(name, extra_layers), target, tokenizer, end_ids)


def _load_light(name: str) -> LoadedModel | None:
    """A folder that was proved; None for any other, and for one that cannot be read all the same: the
    ordinary load says why."""
    if not _is_folder(name):
        return None
    folder = builtin.converted_folder() if name == builtin.NAME else user_path(name)
    key = proof.key_of(folder)
    if key is None or (proved := proof.find(key)) is None or proved.facts is None:
        return None
    _quieten()

    def load() -> Any:
        return _load_ordinary(name, str(folder), {"local_files_only": True}, torch.float32)[1]

    try:
        tokenizer = load_tokenizer(folder, *proved.facts.tokenizer)
        target = LightTarget(folder, proved.facts, load)
    except Exception:
        return None
    return LoadedModel(name, target, tokenizer, frozenset(proved.facts.end_ids))


def _load_ordinary(name: str, source: str, options: dict[str, Any], kind: Any) -> tuple[Any, Any]:
    """Tokenizer and model, by transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _quieten()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model, loading = AutoModelForCausalLM.from_pretrained(
            source, dtype=kind, output_loading_info=True, **options
        )
    except Exception as error:
        raise ValueError(_explain(name, error)) from error
    if loading["missing_keys"]:
        # transformers would fill them with random numbers.
        missing = sorted(loading["missing_keys"])
        raise ValueError(
            f"model {name} lacks {len(missing)} weights that its config asks for, such as {missing[0]}"
        )
    return tokenizer, model.eval().requires_grad_(False)


def _quieten() -> None:
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_logging.set_verbosity_error()  # its retries, a line each, would bury ours


def _is_folder(name: str) -> bool:
    """Whether a name stands for a folder of this machine, no GGUF file and no hub id."""
    if not name or name == builtin.NAME:
        return bool(name)
    path = user_path(name)
    return path.suffix != ".gguf" and path.is_dir()


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """What transformers is asked for, and with which extra arguments."""
    if not name:
        raise ValueError(f"empty model name; use {builtin.NAME}, a folder, a .gguf file or a hub id")
    if name == builtin.NAME:
        return str(builtin.builtin_folder()), {"local_files_only": True}
    path = user_path(name)
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
    if path.is_file():
        raise ValueError(f"{name} is a file: a target is a folder, a .gguf file or a hub id")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"model folder {name} does not exist")
    return name, {}


def user_path(name: str) -> Path:
    """The path a user wrote, `~` expanded; ValueError if it cannot be one."""
    try:
        path = Path(name).expanduser()
        path.exists()
    except (RuntimeError, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"{name[:60]!r} is no model name and no path: {reason}") from None
    return path


def _explain(name: str, error: Exception) -> str:
    """One line for a target that cannot be loaded."""
    if user_path(name).exists() or name == builtin.NAME:
        text = " ".join(str(error).split())
        return f"model {name} is damaged, truncated or of an unsupported kind: {text[:200]}"
    return explain_hub_error("model", name, error, builtin.NAME)


def explain_hub_error(what: str, name: str, error: Exception, known: str) -> str:
    """One line for a hub id that cannot be had: gated, or unknown, or no network."""
    chain = f"{type(error).__name__} {type(error.__cause__).__name__} {error}"
    token = "is set" if os.environ.get("HF_TOKEN") else "is not set"
    if any(sign in chain for sign in ("GatedRepo", "gated", "401", "403")):
        return (
            f"{what} {name} is gated: accept its licence at https://huggingface.co/{name} and set HF_TOKEN "
            f"(it {token})"
        )
    return (
        f"unknown {what} {name!r}: not {known}, not a folder or file here, and not to be had from "
        f"https://huggingface.co/{name} (private or gated ones need HF_TOKEN, which {token})"
    )


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a text: the generation config's, else the model config's, else the tokenizer's."""
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
