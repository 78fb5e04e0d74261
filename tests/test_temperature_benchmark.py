"""The benchmark of temperatures counts what a copy of the target must get right, knowing the noise or not."""

from __future__ import annotations

import torch
from fakes import plain_text, tiny_target

from benchmarks import temperature
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.models import LoadedModel
from decoding.noise import NoiseStream
from decoding.sampling import Sampling

TOKENS = 17
IDS = [5, 9, 31, 12, 5, 9, 31]  # a repetition that a lookup finds


def test_a_copy_of_the_target_is_always_right_with_the_noise_and_only_with_it() -> None:
    """And `rejection` keeps all that it draws. Without the noise the best candidate is the law's mode."""
    target = tiny_target(spread=0.5, layers=2)
    drafter = CausalLMDrafter(tiny_target(spread=0.5, layers=2), target, beam_width=5)
    text = plain_text(target, IDS, TOKENS, Sampling(1.0))
    counts = temperature.count_coupled(target, drafter, IDS, text, TOKENS, 1.0, NoiseStream(0, IDS))
    silent = temperature.Silence().gumbel([0, 4], torch.tensor([3, 7]))
    assert silent.tolist() == [[0.0, 0.0]] * 2
    assert silent.dtype == NoiseStream(0, IDS).gumbel([0], torch.tensor([3])).dtype
    assert counts["positions"] == counts["coupled: first"] == counts["coupled: one of four"] == TOKENS
    assert counts["coupled: accepted 16"] == TOKENS - counts["coupled: cycles 16"]
    logits = target.forward([*IDS, *text], target.new_cache()).logits_RV[len(IDS) - 1 : -1]
    order = logits.argsort(dim=-1, descending=True).tolist()
    ranks = [row.index(token) for row, token in zip(order, text, strict=True)]
    assert counts["without the noise: first"] == sum(rank < 1 for rank in ranks)
    assert counts["without the noise: one of four"] == sum(rank < 4 for rank in ranks) < TOKENS
    assert counts["without the noise: accepted 16"] < counts["coupled: accepted 16"]
    decoder = SpeculativeDecoder(LoadedModel("tiny", target, None, frozenset()), drafter)
    drawn = temperature.count_rejection(decoder, IDS, TOKENS, 1.0, 0)
    assert drawn["rejection: kept 4"] == drawn["rejection: drafted 4"] == 4
    # Four and a bonus token a cycle; of the last two one is drafted.
    assert (drawn["rejection: cycles 4"], drawn["rejection: accepted 4"]) == (4, 13)
