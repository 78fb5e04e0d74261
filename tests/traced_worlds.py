"""Tiny targets with drafters that are right now and then, texts that end in every way, and their traces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from decoding.controller import RootChoice
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.noise import NoiseStream
from decoding.plain_texts import plain_texts
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from decoding.traces import Position, record_text
from tests.fakes import VOCABULARY, tiny_eagle, tiny_target

DEPTH = 5  # of the recordings
CONTEXT = 40
TOKENS = 22
# Single tokens, a repetition that a lookup finds, one that leaves the context few tokens.
PROMPTS = [
    [17],
    [5, 9, 31, 12, 5, 9, 31],
    [30, 4],
    np.random.default_rng(2).integers(3, VOCABULARY, 28).tolist(),
]
END_IDS = frozenset({12, 23})
CHOICES = (RootChoice.ALL, RootChoice.LOOKUP, RootChoice.HEAD)
WORLDS = ("causal", "causal-short", "eagle2", "eagle3", "eagle4", "ngram", "composite-eagle3")
MERGED = ("merged-eagle3", "merged-causal", "merged-causal-short")


@dataclass(frozen=True, slots=True)
class World:
    target: TargetModel
    drafter: Drafter


@dataclass(frozen=True, slots=True)
class Case:
    """A text: of which world, temperature and seed, after which of `PROMPTS`."""

    world: str
    temperature: float
    seed: int
    prompt: int


@cache
def world(name: str) -> World:
    target = tiny_target(context=CONTEXT, spread=1.5, layers=2)
    if name == "ngram":
        return World(target, NgramDrafter(1, branches=2))
    if name.startswith(("merged", "composite")):
        head = world(name.partition("-")[2]).drafter
        assert isinstance(head, EagleDrafter | CausalLMDrafter)
        lookup = NgramDrafter(1, branches=2)
        whole = (
            MergedDrafter(head, lookup, 4) if name.startswith("merged") else CompositeDrafter(head, lookup)
        )
        return World(world(name.partition("-")[2]).target, whole)
    if name.startswith("eagle"):
        return World(target, tiny_eagle(target, beam_width=int(name[-1])))
    # A blurred copy; the short one has no room for the end of a text.
    copy = tiny_target(context=CONTEXT if name == "causal" else 24, spread=1.5, layers=2)
    weight = copy.model.lm_head.weight
    weight += 0.15 * torch.randn(
        weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return World(target, CausalLMDrafter(copy, target, beam_width=2))


@cache
def text_of(case: Case) -> list[int]:
    """What plain decoding emits."""
    target, sampling = world(case.world).target, Sampling(case.temperature)
    ((_, text),) = plain_texts(
        target, [PROMPTS[case.prompt]], sampling, case.seed, max_new_tokens=TOKENS, end_ids=END_IDS
    )
    return text


@cache
def positions_of(case: Case) -> list[Position]:
    """The trace of that text."""
    here, ids = world(case.world), PROMPTS[case.prompt]
    recorded = record_text(
        here.target,
        here.drafter,
        ids,
        text_of(case),
        draft_depth=DEPTH,
        temperature=case.temperature,
        noise=NoiseStream(case.seed, ids),
        choices=CHOICES if case.world in MERGED else CHOICES[:1],
    )
    return list(recorded)


def session_of(case: Case) -> Session:
    """A live request for the same text, just begun."""
    here = world(case.world)
    return Session(
        here.target,
        here.drafter,
        PROMPTS[case.prompt],
        max_new_tokens=TOKENS,
        end_ids=END_IDS,
        sampling=Sampling(case.temperature),
        seed=case.seed,
    )
