"""From a target and texts to a trainer that is ready to run: the recipe for a draft head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from decoding.corpus import corpus_digest, load_corpus, split_held_out
from decoding.drafters.eagle_head import EagleConfig, EagleHead
from decoding.models import LoadedModel
from decoding.train_head import HeadSettings, HeadTrainer, frequent_vocabulary, initialise_from_target

# Held-out texts that are scored while a head trains: enough for about a point of agreement, little time.
_HELD_OUT_TEXTS = 40


def check_draft_vocabulary(model: LoadedModel, size: int) -> None:
    """ValueError if a head of `model` cannot draft `size` ids: to be said before texts are written for it."""
    least, most = len(model.end_ids), model.target.vocabulary_size
    if not least <= size <= most:
        raise ValueError(f"draft vocabulary of {size} is outside {least}..{most}")


def prepare(
    model: LoadedModel,
    corpus: Path | Sequence[Path],
    settings: HeadSettings,
    *,
    draft_vocabulary: int,
    max_length: int,
    held_out_share: float,
) -> HeadTrainer:
    """A trainer for a fresh head of `model` (loaded in fp32) on the texts of `corpus`.

    Args:
        corpus: a file of texts, a folder of shards, or several of these (see `load_corpus`).
        draft_vocabulary: ids that the head can draft, the most frequent of the training texts.
        max_length: longer texts are cut.
        held_out_share: of the texts, kept to measure agreement.
    """
    target = model.target
    texts = load_corpus(corpus, model.tokenizer, target.vocabulary_size, max_length)
    texts, held_out = split_held_out(texts, held_out_share)
    ends = sorted(model.end_ids)
    head = EagleHead(EagleConfig.from_target(target, draft_vocabulary))
    head.set_vocabulary(frequent_vocabulary(texts, draft_vocabulary, target.vocabulary_size, ends))
    initialise_from_target(head, target)
    identity = {
        "target": target.fingerprint(),
        "corpus": corpus_digest(corpus),
        "draft_vocabulary": draft_vocabulary,
        "max_length": max_length,
        "held_out_share": held_out_share,
    }
    return HeadTrainer(head, target, texts, held_out[:_HELD_OUT_TEXTS], settings, identity)
