"""From a target and texts to a trainer that is ready to run: the recipe for a draft head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from decoding.artifacts import sha256_file
from decoding.corpus import corpus_digest, load_corpus, split_held_out
from decoding.drafters.eagle_head import WEIGHTS_FILE, EagleConfig, EagleHead
from decoding.head_settings import HeadSettings
from decoding.head_start import frequent_vocabulary, go_on_from, initialise_from_target, load_start
from decoding.models import LoadedModel
from decoding.train_head import HeadTrainer

# Held-out texts that are scored while a head trains: enough for about a point of agreement, little time.
_HELD_OUT_TEXTS = 60


def check_draft_vocabulary(model: LoadedModel, size: int) -> None:
    """ValueError if a head of `model` cannot draft `size` ids: to be said before texts are written for it."""
    least, most = len(model.end_ids), model.target.vocabulary_size
    if not least <= size <= most:
        raise ValueError(f"draft vocabulary of {size} is outside {least}..{most}")


def check_start(
    model: LoadedModel, start_from: Path | None, fused_layers: tuple[int, int, int] | None
) -> EagleHead | None:
    """The head in `start_from`, None for a fresh one; ValueError if training cannot start so, as above."""
    start = None if start_from is None else load_start(start_from, model.target, fused_layers)
    layers = start.config.fused_layers if start else fused_layers or ()
    model.target.capture(layers)  # refuses layers that are not there
    model.target.capture(())
    return start


def prepare(
    model: LoadedModel,
    corpus: Path | Sequence[Path],
    settings: HeadSettings,
    *,
    draft_vocabulary: int,
    max_length: int,
    held_out_share: float,
    fused_layers: tuple[int, int, int] | None = None,
    start_from: Path | None = None,
    states_folder: Path | None = None,
) -> HeadTrainer:
    """A trainer for a head of `model` (loaded in fp32) on the texts of `corpus`.

    Args:
        corpus: a file of texts, a folder of shards, or several of these (see `load_corpus`).
        draft_vocabulary: ids that the head can draft, the most frequent of the training texts.
        max_length: longer texts are cut.
        held_out_share: of the texts, kept to measure agreement.
        fused_layers: whose states the head reads, as in `TargetModel`; None = low, middle, high, or those of
            the head that is started from.
        start_from: folder of a head to go on from; None = a fresh one.
        states_folder: where the target's states of the texts are kept for later runs; None = nowhere.
    """
    target = model.target
    texts = load_corpus(corpus, model.tokenizer, target.vocabulary_size, max_length)
    texts, held_out = split_held_out(texts, held_out_share)
    ends = sorted(model.end_ids)
    vocabulary = frequent_vocabulary(texts, draft_vocabulary, target.vocabulary_size, ends)
    if start_from is None:
        config = EagleConfig.from_target(target, draft_vocabulary)
        head = EagleHead(replace(config, fused_layers=fused_layers or config.fused_layers))
        head.set_vocabulary(vocabulary)
        initialise_from_target(head, target)
    else:
        head = go_on_from(load_start(start_from, target, fused_layers), target, vocabulary)
    identity = {
        "target": target.text_fingerprint(),
        "corpus": corpus_digest(corpus),
        "draft_vocabulary": draft_vocabulary,
        "max_length": max_length,
        "held_out_share": held_out_share,
        "fused_layers": list(head.config.fused_layers),
        "start_from": None if start_from is None else sha256_file(start_from / WEIGHTS_FILE),
    }
    return HeadTrainer(head, target, texts, _spread(held_out), settings, identity, states_folder)


def _spread(held_out: list[np.ndarray]) -> list[np.ndarray]:
    """`_HELD_OUT_TEXTS` of them, evenly over the corpus: its sources stand one after the other."""
    count = min(_HELD_OUT_TEXTS, len(held_out))
    return [held_out[place * len(held_out) // count] for place in range(count)]
