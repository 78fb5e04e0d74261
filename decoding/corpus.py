"""Texts to train a draft head on: token sequences from archives and JSONL files."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from decoding.artifacts import sha256_file


def load_corpus(
    source: Path | Sequence[Path], tokenizer: Any, vocabulary_size: int, max_length: int
) -> list[np.ndarray]:
    """Read texts as int64 arrays of 4 to `max_length` token ids; shorter ones are left out.

    `.npz` holds `tokens` (end to end) and `offsets` (n + 1). `.jsonl` holds one object a line with `text`, or
    with `messages` in the chat format. A folder stands for its `.npz` files, in the order of their names, and
    several sources are read one after the other. ValueError names the file, and the line where there is one.
    """
    kept = []
    for path in corpus_files(source):
        for number, text in enumerate(_read(path, tokenizer)):
            if len(text) and not 0 <= int(text.min()) <= int(text.max()) < vocabulary_size:
                raise ValueError(
                    f"corpus {path}: text {number} has ids outside 0..{vocabulary_size - 1}: "
                    "another model's tokenizer?"
                )
            if len(text) >= 4:
                kept.append(text[:max_length])
    if not kept:
        raise ValueError(f"corpus {_named(source)} holds no text of at least 4 tokens")
    return kept


def corpus_files(source: Path | Sequence[Path]) -> list[Path]:
    """The files of a corpus: of each folder its `.npz` files by name. ValueError for a folder without any."""
    files: list[Path] = []
    for path in _sources(source):
        shards = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not shards:
            raise ValueError(f"corpus folder {path} holds no .npz file")
        files += shards
    return files


def corpus_name(source: Path | Sequence[Path] | None) -> str:
    """What a card calls a corpus: names without folders, which would tell of the machine; None: its own."""
    return ", ".join(path.name for path in _sources(source)) if source else "written by the target itself"


def corpus_digest(source: Path | Sequence[Path]) -> str:
    """Hexadecimal SHA-256 of a corpus: of the file, or of the digests of several files in their order."""
    digests = [sha256_file(path) for path in corpus_files(source)]
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


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


def _sources(source: Path | Sequence[Path]) -> list[Path]:
    return [source] if isinstance(source, Path) else list(source)


def _named(source: Path | Sequence[Path]) -> str:
    return ", ".join(map(str, _sources(source)))


def _read(path: Path, tokenizer: Any) -> list[np.ndarray]:
    if path.suffix == ".npz":
        return _from_archive(path)
    if path.suffix == ".jsonl":
        return _from_lines(path, tokenizer)
    raise ValueError(f"corpus {path} must end in .npz or .jsonl, not {path.suffix or 'nothing'!r}")


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
