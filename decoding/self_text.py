"""Text that a target writes itself, to train its draft head on: in shards, so that a killed run goes on.

A text is a function of (seed, its number), up to floating-point ties. Each shard begins with an empty batch:
on one machine a resumed run gives the same texts as an unbroken one, ties or not.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoding.artifacts import atomic_path, read_json, write_json
from decoding.models import LoadedModel
from decoding.text_plans import Opening, Planner, Text
from decoding.text_rows import RowWriter

SHARD_TEXTS = 256
_HEADER = "texts.json"


@dataclass(frozen=True, slots=True)
class TextSettings:
    """What is written: at least `tokens` tokens, prompts included, in texts of at most `max_length`, `batch`
    at a time; each answer has one of `temperatures` (0 = greedy), chosen evenly."""

    tokens: int
    seed: int
    max_length: int = 320
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    batch: int = 64


@dataclass(frozen=True, slots=True)
class TextProgress:
    """After some texts: shards that are complete, texts and tokens in all, and this run's speed.

    `rate` counts the tokens of finished texts; `fed_rate` all that the target was fed: also passages before
    they were quoted and what was cut. `looped`: share of this run's texts with a loop cut.
    """

    shards: int
    texts: int
    tokens: int
    rate: float
    fed_rate: float
    looped: float
    seconds_left: float

    def __str__(self) -> str:
        return (
            f"{self.texts} texts in {self.shards} shards and one begun, {self.tokens} tokens, "
            f"{self.rate:.0f} tokens/s ({self.fed_rate:.0f} computed), loops cut in {self.looped:.1%}, "
            f"{self.seconds_left / 60:.0f} min left"
        )


def recorded_seed(folder: Path) -> int | None:
    """The seed that the texts in `folder` were written with, None where none were."""
    if not (folder / _HEADER).exists():
        return None
    return int(_header(folder)["seed"])


def write_texts(
    model: LoadedModel, folder: Path, settings: TextSettings, openings: Sequence[Opening]
) -> Iterator[TextProgress]:
    """Write shards into `folder` until they hold `settings.tokens`; yields every 32 texts and every shard.

    Shards that are there stay. ValueError if they were written by another model or with other settings.
    """
    planner = Planner(model, openings, settings.temperatures, settings.max_length)
    _check_header(folder, _identity(model, settings, openings))
    writer = RowWriter(model.target, planner.frame.before, settings.batch, settings.max_length)
    shard, texts, tokens = 0, 0, 0
    started, mine, looped, written_tokens = time.monotonic(), 0, 0, 0

    def progress() -> TextProgress:
        elapsed = max(1e-9, time.monotonic() - started)
        rate = written_tokens / elapsed
        left = max(0, settings.tokens - tokens) / rate if rate else float("inf")
        fed = writer.fed_tokens / elapsed
        return TextProgress(shard, texts, tokens, rate, fed, looped / max(1, mine), left)

    while tokens < settings.tokens:
        path = shard_path(folder, shard)
        if path.exists():
            texts, tokens, shard = texts + SHARD_TEXTS, tokens + shard_tokens(path), shard + 1
            continue
        jobs = [np.random.default_rng([settings.seed, shard, place]) for place in range(SHARD_TEXTS)]
        written: list[Text | None] = [None] * SHARD_TEXTS
        for place, text in writer.run([(planner.script(rng), rng) for rng in jobs]):
            written[place] = text
            texts, tokens, mine = texts + 1, tokens + len(text.tokens), mine + 1
            looped, written_tokens = looped + text.looped, written_tokens + len(text.tokens)
            if mine % 32 == 0 and mine % SHARD_TEXTS:
                yield progress()
        _save_shard(path, [text for text in written if text is not None], model.target.vocabulary_size)
        shard += 1
        yield progress()


def enough_shards(folder: Path, tokens: int) -> list[Path]:
    """The first shards of `folder` that hold `tokens` together: what a run that asked for so many wrote."""
    paths: list[Path] = []
    while tokens > 0:
        paths.append(shard_path(folder, len(paths)))
        tokens -= shard_tokens(paths[-1])
    return paths


def shard_path(folder: Path, number: int) -> Path:
    """Where a shard is, or will be."""
    return folder / f"shard-{number:05d}.npz"


def shard_tokens(path: Path) -> int:
    """Tokens that a shard holds; ValueError if it is missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return int(archive["offsets"][-1])
    except Exception as error:  # zip, zlib, numpy and the file system each have their own
        raise ValueError(f"shard {path} is missing or damaged ({error}): remove it") from None


def _save_shard(path: Path, texts: Sequence[Text], vocabulary_size: int) -> None:
    """The corpus format, and of every text its kind, its temperature and whether a loop was cut."""
    kind = np.uint16 if vocabulary_size <= 2**16 else np.uint32
    arrays: dict[str, Any] = {
        "tokens": np.concatenate([np.array(text.tokens, dtype=kind) for text in texts]),
        "offsets": np.cumsum([0, *(len(text.tokens) for text in texts)], dtype=np.int64),
        "prompt_lengths": np.array([text.prompt_length for text in texts], dtype=np.int32),
        "kinds": np.array([text.kind for text in texts]),
        "temperatures": np.array([text.temperature for text in texts], dtype=np.float32),
        "looped": np.array([text.looped for text in texts]),
    }
    # A file object, since numpy would put .npz after the temporary name.
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _identity(model: LoadedModel, settings: TextSettings, openings: Sequence[Opening]) -> dict[str, Any]:
    listed = json.dumps([asdict(opening) for opening in openings], ensure_ascii=False)
    return {
        "target": model.target.text_fingerprint(),
        "seed": settings.seed,
        "max_length": settings.max_length,
        "temperatures": list(settings.temperatures),
        "openings": hashlib.sha256(listed.encode()).hexdigest()[:16],
        "shard_texts": SHARD_TEXTS,
    }


def _check_header(folder: Path, identity: dict[str, Any]) -> None:
    if not (folder / _HEADER).exists():
        write_json(folder / _HEADER, identity)
        return
    recorded = _header(folder)
    changed = [key for key, value in identity.items() if recorded.get(key) != value]
    if changed:
        raise ValueError(
            f"the texts in {folder} were written with other {', '.join(changed)}: choose another --out"
        )


def _header(folder: Path) -> dict[str, Any]:
    header = read_json(folder / _HEADER, "record of texts")
    if type(header.get("seed")) is not int:
        raise ValueError(f"record of texts {folder / _HEADER} is damaged: remove the folder")
    return header


def read_prompts(
    folder: Path, vocabulary_size: int, earlier_texts: Sequence[int] = (0,)
) -> list[tuple[str, tuple[int, ...], str]]:
    """Of every text in the shards of `folder`: a name, the token ids of its prompt, its kind.

    Args:
        earlier_texts: whole texts of the same shard that stand before a prompt, for longer contexts: as many
            as these numbers say, in turn.

    Raises:
        ValueError: one line, if there is no shard, one is damaged, or its ids are not those of this
            vocabulary.
    """
    paths = sorted(folder.glob("shard-*.npz"))
    if not paths:
        raise ValueError(f"{folder} holds no texts (shard-*.npz): train.py texts writes them")
    return [one for path in paths for one in _prompts_of(path, vocabulary_size, earlier_texts)]


def _prompts_of(
    path: Path, vocabulary_size: int, earlier_texts: Sequence[int]
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = ("tokens", "offsets", "prompt_lengths", "kinds")
            tokens, offsets, lengths, kinds = (archive[name] for name in names)
        whole = all(np.issubdtype(part.dtype, np.integer) for part in (tokens, offsets, lengths))
        sound = tokens.ndim == 1 and len(offsets) == len(lengths) + 1 == len(kinds) + 1
        tokens, offsets = tokens.astype(np.int64), offsets.astype(np.int64)
        texts = np.diff(offsets)
        if not (whole and sound and offsets[0] == 0 and offsets[-1] == len(tokens)):
            raise ValueError("its arrays do not fit each other")
        if not ((lengths >= 1) & (lengths <= texts)).all():
            raise ValueError(f"prompt_lengths are {lengths.min()}..{lengths.max()}, must be within the texts")
    except Exception as error:  # zip, zlib, numpy and the file system each have their own
        raise ValueError(f"shard {path} is missing or damaged ({error}): remove it") from None
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary_size:
        raise ValueError(
            f"shard {path} has token ids {tokens.min()}..{tokens.max()}, the target's end at "
            f"{vocabulary_size - 1}: it is another model's"
        )
    for number, (start, length, kind) in enumerate(zip(offsets[:-1], lengths, kinds, strict=True)):
        before = [(number + 1 + i) % len(kinds) for i in range(earlier_texts[number % len(earlier_texts)])]
        parts = [tokens[offsets[one] : offsets[one + 1]] for one in before]
        ids = np.concatenate([*parts, tokens[start : start + length]])
        yield f"{path.stem}-{number}", tuple(ids.tolist()), str(kind)
