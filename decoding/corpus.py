"""Texts to train a draft head on: token sequences from an archive or a JSONL file."""

from __future__ import annotations

import json
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


def load_corpus(path: Path, tokenizer: Any, vocabulary_size: int, max_length: int) -> list[np.ndarray]:
    """Read texts as int64 arrays of 4 to `max_length` token ids; shorter ones are left out.

    `.npz` holds `tokens` (end to end) and `offsets` (n + 1). `.jsonl` holds one object a line with `text`, or
    with `messages` in the chat format. ValueError names the file, and the line where there is one.
    """
    if path.suffix == ".npz":
        texts = _from_archive(path)
    elif path.suffix == ".jsonl":
        texts = _from_lines(path, tokenizer)
    else:
        raise ValueError(f"corpus {path} must end in .npz or .jsonl, not {path.suffix or 'nothing'!r}")
    for number, text in enumerate(texts):
        if len(text) and not 0 <= int(text.min()) <= int(text.max()) < vocabulary_size:
            raise ValueError(
                f"corpus {path}: text {number} has ids outside 0..{vocabulary_size - 1}: "
                "another model's tokenizer?"
            )
    kept = [text[:max_length] for text in texts if len(text) >= 4]
    if not kept:
        raise ValueError(f"corpus {path} holds no text of at least 4 tokens")
    return kept


def split_held_out(texts: list[np.ndarray], share: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(training, held out), by a hash of each text's first half, so that copies of a prompt stay together."""
    held: list[np.ndarray] = []
    rest: list[np.ndarray] = []
    for text in texts:
        bucket = zlib.crc32(text[: max(4, min(48, len(text) // 2))].tobytes()) / 2**32
        (held if bucket < share else rest).append(text)
    if not held or not rest:
        raise ValueError(f"{len(texts)} texts with a held-out share of {share} leave one side empty")
    return rest, held


def _from_archive(path: Path) -> list[np.ndarray]:
    try:
        # Opened here: numpy leaves a file open that turns out to be no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            tokens, offsets = archive["tokens"].astype(np.int64), archive["offsets"]
    except FileNotFoundError:
        raise ValueError(f"corpus {path} does not exist") from None
    except (KeyError, ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"corpus {path} is not an archive of `tokens` and `offsets`: {error}") from None
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) < 0).any():
        raise ValueError(f"corpus {path}: `offsets` do not rise from 0 to the {len(tokens)} tokens")
    return [tokens[start:end] for start, end in pairwise(offsets)]


def _from_lines(path: Path, tokenizer: Any) -> list[np.ndarray]:
    texts = []
    try:
        # Not splitlines(): a JSON string may hold U+2028 and its like unescaped.
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise ValueError(f"corpus {path} does not exist") from None
    except (UnicodeDecodeError, OSError) as error:
        raise ValueError(f"corpus {path} is not readable text: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if "messages" in record:
                ids = tokenizer.apply_chat_template(record["messages"], tokenize=True, return_dict=False)
            else:
                ids = tokenizer(record["text"], add_special_tokens=False)["input_ids"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"corpus {path}, line {number}: needs `text` or `messages` ({error})") from None
        texts.append(np.asarray(ids, dtype=np.int64))
    return texts
