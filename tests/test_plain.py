"""Plain decoding against independent references: no cache, Python's integers, transformers' `generate`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import pytest
import torch

from decoding.sampling import Sampling
from decoding.target import TargetModel
from tests.fakes import plain_text, tiny_target

MASK = 2**64 - 1


def reference_uniform(seed: int, prompt: Sequence[int], index: int, token: int) -> float:
    """SplitMix64 keyed by SHA-256, in Python's integers."""
    prompt_bytes = b"".join(token_id.to_bytes(8, "little", signed=True) for token_id in prompt)
    stream = hashlib.sha256(f"draftpace noise 1 {seed}:".encode() + prompt_bytes).digest()
    key = int.from_bytes(hashlib.sha256(stream + index.to_bytes(8, "little")).digest()[:8], "little")
    z = (key + (token + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return max(z >> 11, 0.5) / 2**53


def reference_next(logits: list[float], sampling: Sampling, uniforms: list[float]) -> int:
    """Temperature, top-k, top-p and Gumbel argmax, token by token."""
    tokens = list(range(len(logits)))
    if sampling.temperature == 0:
        return max(tokens, key=lambda token: (logits[token], -token))
    scaled = [logit / sampling.temperature for logit in logits]
    best_first = sorted(tokens, key=lambda token: (-scaled[token], token))
    allowed = best_first
    if sampling.top_k is not None:
        kth = scaled[best_first[min(sampling.top_k, len(tokens)) - 1]]
        allowed = [token for token in best_first if scaled[token] >= kth]
    if sampling.top_p is not None:
        weights = [math.exp(scaled[token] - scaled[allowed[0]]) for token in allowed]
        few: list[int] = []
        total, reached = sum(weights), 0.0
        for token, weight in zip(allowed, weights, strict=True):
            if reached >= sampling.top_p and few:
                break
            few.append(token)
            reached += weight / total
        allowed = few
    return max(allowed, key=lambda token: (scaled[token] - math.log(-math.log(uniforms[token])), -token))


def reference_text(
    target: TargetModel, prompt: Sequence[int], tokens: int, sampling: Sampling, seed: int
) -> list[int]:
    """The model on the whole prefix at every step, without any cache."""
    text: list[int] = []
    for index in range(tokens):
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *text]])
            logits = target.model(input_ids=ids, use_cache=False).logits[0, -1].tolist()
        uniforms = [reference_uniform(seed, prompt, index, token) for token in range(len(logits))]
        text.append(reference_next(logits, sampling, uniforms))
    return text


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(1.0),
        Sampling(0.7),
        Sampling(1.3, top_k=4),
        Sampling(1.0, top_p=0.6),
        Sampling(0.7, top_k=9, top_p=0.9),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, -(2**63), 2**64 - 1])
def test_plain_decoding_is_the_naive_loop(sampling: Sampling, seed: int) -> None:
    """One forward a token over everything, noise from Python's integers: the same tokens."""
    target = tiny_target(seed=4, layers=2)
    for prompt in ([3], [8, 30, 8, 31, 17]):
        expected = reference_text(target, prompt, 8, sampling, seed)
        assert plain_text(target, prompt, 8, sampling, seed) == expected


def test_greedy_plain_decoding_is_transformers_generate() -> None:
    target = tiny_target(seed=4)
    for prompt in ([3], [8, 30, 8, 31, 17], [39, 38, 37]):
        ids = torch.tensor([prompt])
        generated = target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=16,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert plain_text(target, prompt, 16) == generated[0, len(prompt) :].tolist()
