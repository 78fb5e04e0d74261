"""Proofs, kept in the cache, that the target in a folder may be loaded as a `LightTarget`.

The ordinary load, by transformers, comes first and compares the fast path with the eager one. Then `prove`
reads the folder the light way as well and compares: every weight to the bit, since stacks that are packed
from the same weights and the same shape are the same; the tokenizer's class, its state, and what it makes of
some texts. All else that a light load takes over are the `Facts` that the ordinary one found. A proof is
found again by a key that changes with everything it depends on; where it is missing or damaged, the ordinary
load makes it anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import tokenizers
import torch
import transformers

from decoding import native
from decoding.artifacts import cache_dir, read_json, write_json
from decoding.light import Facts, load_tokenizer
from decoding.llama_stack import model_shape, model_weights
from decoding.target import TargetModel
from decoding.weight_files import WeightFiles

# Whose code decides what is loaded; native.c's hash is in its library's name.
_SOURCES = (
    *("artifacts", "attention_mask", "builtin", "extra_layers", "fast_forward", "kv_cache", "light"),
    *("linear", "llama_stack", "models", "native", "packed", "proof", "survival", "target", "weight_files"),
)
_LIBRARIES = (torch, transformers, tokenizers, safetensors)
_TEMPLATES = "additional_chat_templates"
_LARGE_BYTES = 64_000_000
_TEXTS = (
    "Why is the sky blue?",
    "  Two  spaces,\n\na\ttab; 1234567 numbers, isn't it?",
    "Größe, naïve, 你好, мир, مرحبا, 🙂👩‍👩‍👧 <s> </s> <|im_end|>",
    "def f(x):\n    return [x ** 2 for _ in range(10)]\n",
    "",
)
_MESSAGES = [{"role": "user", "content": text} for text in _TEXTS[:1]]
_SETTINGS = (
    *("special_tokens_map", "all_special_ids", "chat_template", "model_max_length", "padding_side"),
    *("truncation_side", "clean_up_tokenization_spaces", "model_input_names", "split_special_tokens"),
)


@dataclass(frozen=True, slots=True)
class Proof:
    """Facts; or None, and how the two loads differ: then no proof need be tried again."""

    facts: Facts | None
    differs: str = ""


def key_of(folder: Path) -> str | None:
    """Changes with the folder's files, the code and the machine; None where there can be no proof."""
    try:
        # ctime: a file may be replaced by one of the same size that keeps its own mtime.
        files = [
            (entry.name, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            for entry in sorted([*folder.iterdir(), *folder.glob(f"{_TEMPLATES}/*")])
            if entry.is_file() and (found := entry.stat())
        ]
        library = native.library()._name
    except (OSError, native.NoNativeCode):
        return None
    sources = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in _SOURCES]
    parts = (folder.resolve(), files, library, [one.__version__ for one in _LIBRARIES], sources)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def find(key: str) -> Proof | None:
    """The proof of this key, if there is one and it is as it was written."""
    try:
        stamp = read_json(_path(key), "proof")
        if stamp["sha256"] != _digest(key, stamp["facts"], stamp["differs"]):
            return None
        facts = None if stamp["facts"] is None else Facts.of_json(stamp["facts"])
        return Proof(facts, str(stamp["differs"]))
    except (ValueError, KeyError, TypeError):
        return None


def prove(key: str, folder: Path, target: TargetModel, tokenizer: Any, end_ids: frozenset[int]) -> None:
    """Compare a target that was just loaded onto the fast path with what a light load finds, and write down
    the result. Whatever is in the way of that is no error: the next load is an ordinary one again."""
    path = _path(key)
    with suppress(OSError, ValueError, TypeError, MemoryError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            return
        if sum(file.stat().st_size for file in folder.glob("*.safetensors")) > _LARGE_BYTES:
            said = "checking that this model may be loaded a faster way from now on (a few seconds)"
            print(said, file=sys.stderr, flush=True)
        facts = _facts(target, tokenizer, end_ids)
        differs = _difference(folder, facts, target.model, tokenizer)
        if key_of(folder) != key:
            return  # it changed while it was read
        proved = None if differs else asdict(facts)
        digest = _digest(key, proved, differs)
        write_json(path, {"folder": str(folder), "facts": proved, "differs": differs, "sha256": digest})
        _forget_lost_folders(path.parent)


def _facts(target: TargetModel, tokenizer: Any, end_ids: frozenset[int]) -> Facts:
    kind = type(tokenizer)
    return Facts(
        shape=model_shape(target.model),
        config=json.loads(target.config.to_json_string(use_diff=False)),
        end_ids=tuple(sorted(end_ids)),
        fingerprint=target.fingerprint(),
        tokenizer=(kind.__module__, kind.__qualname__),
    )


def _difference(folder: Path, facts: Facts, model: Any, tokenizer: Any) -> str:
    """Where the light load departs from the ordinary one; empty if nowhere."""
    try:
        if Facts.of_json(json.loads(json.dumps(asdict(facts), allow_nan=False))) != facts:
            return "the facts as JSON"
        weights, files = model_weights(model), WeightFiles(folder)
        for prefix in facts.shape.prefixes():
            if not _equal(weights(prefix), files.read(prefix)):
                return f"the weights {prefix}*"
        light = _behaviour(load_tokenizer(folder, *facts.tokenizer))
        for name, value in _behaviour(tokenizer).items():
            if value != light[name]:
                return f"the tokenizer's {name}"
    except (OSError, MemoryError):
        raise  # as things are now; another time it may go well
    except Exception as error:  # transformers' tokenizers raise what they like
        return f"{type(error).__name__}: {error}"
    return ""


def _equal(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> bool:
    """To the bit: nan is nan, and 0 is not -0."""
    bits = [{name: tensor.view(torch.int32) for name, tensor in one.items()} for one in (ours, theirs)]
    return ours.keys() == theirs.keys() and all(torch.equal(bits[0][name], bits[1][name]) for name in ours)


def _behaviour(tokenizer: Any) -> dict[str, Any]:
    """All that decoding sees of a tokenizer: its state, and in case its class adds to that, what it does."""
    seen = {name: getattr(tokenizer, name, None) for name in _SETTINGS}
    seen["state"] = tokenizer.backend_tokenizer.to_str()
    seen["vocabulary"] = tokenizer.get_vocab()
    for text in _TEXTS:
        ids = tokenizer(text)["input_ids"]
        bare = tokenizer(text, add_special_tokens=False)["input_ids"]
        decoded = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
        seen[f"of {text!r}"] = (ids, bare, decoded)
    if tokenizer.chat_template:
        seen["messages"] = tokenizer.apply_chat_template(
            _MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    return seen


def _digest(key: str, facts: Any, differs: str) -> str:
    """A stamp whose file was damaged, moved or edited is none."""
    return hashlib.sha256(json.dumps([key, facts, differs], sort_keys=True).encode()).hexdigest()


def _path(key: str) -> Path:
    return cache_dir() / "proved" / f"{key}.json"


def _forget_lost_folders(home: Path) -> None:
    for path in home.glob("*.json"):
        with suppress(ValueError):
            if not Path(str(read_json(path, "proof").get("folder"))).is_dir():
                path.unlink(missing_ok=True)
