"""Many prompts at once: each text is what a session alone gives, token by token."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.plain_texts import plain_texts
from decoding.sampling import Sampling
from tests.fakes import END_ID, VOCABULARY, plain_text, tiny_target

TOKENS = 14
TARGET = tiny_target(spread=3.0, layers=2, context=24)
SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(1.0, top_k=5), Sampling(0.7, top_p=0.9, min_p=0.01)]
# 15 and 23 tokens meet the context's end before the limit.
LENGTHS = (1, 5, 2, 23, 9, 3, 15, 1, 7)
PROMPTS = [np.random.default_rng(n).integers(3, VOCABULARY, n).tolist() for n in LENGTHS]
EXPECTED_LENGTHS = [TOKENS, TOKENS, TOKENS, 1, TOKENS, TOKENS, 9, TOKENS, TOKENS]


@cache
def alone(sampling: Sampling, seed: int, end_ids: frozenset[int] = frozenset()) -> list[list[int]]:
    return [plain_text(TARGET, prompt, TOKENS, sampling, seed, end_ids) for prompt in PROMPTS]


def together(sampling: Sampling, seed: int, batch: int, **options: Any) -> dict[int, list[int]]:
    given: dict[str, Any] = {"max_new_tokens": TOKENS, "end_ids": (), "batch": batch} | options
    found = list(plain_texts(TARGET, PROMPTS, sampling, seed, **given))
    assert len(found) == len(PROMPTS)
    return dict(found)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm", "top-k", "top-p"])
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_each_text_is_its_sessions(batch: int, sampling: Sampling) -> None:
    """Prompts of many lengths, some with less room than tokens asked for."""
    expected = alone(sampling, 7)
    assert [len(text) for text in expected] == EXPECTED_LENGTHS
    assert together(sampling, 7, batch) == dict(enumerate(expected))


@settings(max_examples=10)
@given(seed=st.integers(-(2**63), 2**64 - 1), batch=st.integers(1, 6), ending=st.integers(0, 5))
def test_an_end_is_part_of_its_text(seed: int, batch: int, ending: int) -> None:
    """Wherever it comes, the first token of all among the places."""
    ends = frozenset({END_ID, *(text[min(ending, len(text) - 1)] for text in alone(SAMPLINGS[1], seed)[::3])})
    expected = alone(SAMPLINGS[1], seed, ends)
    assert any(len(text) < length for text, length in zip(expected, EXPECTED_LENGTHS, strict=True))
    assert together(SAMPLINGS[1], seed, batch, end_ids=ends) == dict(enumerate(expected))


def test_texts_come_as_they_are_done_and_the_output_layer_runs_once_a_forward() -> None:
    calls = {"decoder": 0, "head": 0, "rows": 0}

    def count(name: str, rows: int) -> None:
        calls[name] += 1
        calls["rows"] += rows

    model = TARGET.model
    hooks = [
        model.get_decoder().register_forward_hook(lambda *_: count("decoder", 0)),
        model.lm_head.register_forward_hook(lambda _m, _i, logits: count("head", len(logits))),
    ]
    try:
        texts = plain_texts(TARGET, PROMPTS, SAMPLINGS[0], 0, max_new_tokens=TOKENS, end_ids=(), batch=32)
        assert next(texts)[0] == 0
        assert calls["decoder"] == TOKENS
        order = [0, *(number for number, _ in texts)]
    finally:
        for hook in hooks:
            hook.remove()
    lasts = [len(prompt) + length for prompt, length in zip(PROMPTS, EXPECTED_LENGTHS, strict=True)]
    assert [lasts[number] for number in order] == sorted(lasts)
    assert calls == {"decoder": max(lasts) - 1, "head": max(lasts) - 1, "rows": sum(EXPECTED_LENGTHS)}


def test_no_prompts_give_no_texts() -> None:
    assert list(plain_texts(TARGET, [], SAMPLINGS[0], 0, max_new_tokens=3, end_ids=())) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": [[5], []]}, "prompt number 1: the prompt is empty"),
        ({"prompts": [[5], [6], [7] * 24]}, "prompt number 2: the prompt has 24 tokens, .* context holds 24"),
        ({"prompts": [[5, VOCABULARY]]}, "prompt number 0: the prompt has a token id outside"),
        ({"max_new_tokens": 0}, "prompt number 0: max_new_tokens is 0, must be"),
        ({"seed": 2**64}, "seed is 18446744073709551616, must be a whole number of 64 bits"),
        ({"batch": 0}, "batch is 0, must be a whole number >= 1"),
        ({"sampling": Sampling(repetition_penalty=1.2)}, "hold a repetition penalty or logits processors"),
    ],
)
def test_what_a_session_refuses_is_refused_at_once(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"prompts": [[5]], "sampling": Sampling(), "seed": 0}
    options |= {"max_new_tokens": 3, "end_ids": ()} | change
    with pytest.raises(ValueError, match=message) as caught:
        plain_texts(TARGET, **options)
    assert "\n" not in str(caught.value)
