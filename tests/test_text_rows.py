"""The rows of a batch: each is plain decoding of its own text, whoever shares the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes import END_ID, VOCABULARY, plain_text, tiny_target

from decoding.repetition import loop_cut
from decoding.text_rows import Ask, Draw, RowWriter, Script, Written, choose_tokens

TARGET = tiny_target(spread=3.0, layers=2)
PREFIX = [1, 7, 9]
ENDS = frozenset({END_ID})


def one_stretch(given: list[int], draw: Draw) -> Script[Written]:
    return (yield Ask(given, draw))


def greedy(limit: int, stop_ids: frozenset[int] = frozenset()) -> Draw:
    return Draw(0.0, None, limit, stop_ids)


def run(
    scripts: list[Script[Any]], batch: int, prefix: list[int] = PREFIX, seeds: list[int] | None = None
) -> list[Any]:
    """What each script returns."""
    writer = RowWriter(TARGET, prefix, batch, 64)
    generators = [np.random.default_rng([4, seed]) for seed in seeds or range(len(scripts))]
    done = dict(writer.run(list(zip(scripts, generators, strict=True))))
    return [done[place] for place in range(len(scripts))]


@pytest.mark.parametrize("prefix", [PREFIX, [5]])
@pytest.mark.parametrize("batch", [1, 3, 20])
def test_greedy_rows_are_plain_decoding_one_by_one(batch: int, prefix: list[int]) -> None:
    """Whatever their lengths, and whoever had the row before."""
    rng = np.random.default_rng(0)
    givens = [rng.integers(10, VOCABULARY, 1 + place % 5).tolist() for place in range(9)]
    limits = [3 + 5 * place % 23 for place in range(9)]
    texts = run(
        [one_stretch(given, greedy(limit)) for given, limit in zip(givens, limits, strict=True)],
        batch,
        prefix,
    )
    for given, limit, text in zip(givens, limits, texts, strict=True):
        expected = plain_text(TARGET, [*prefix, *given], limit)
        assert text == Written(expected, None)


def test_a_stretch_ends_before_its_stop_token() -> None:
    expected = plain_text(TARGET, [*PREFIX, 12], 20)
    stop = expected[4]
    (text,) = run([one_stretch([12], greedy(20, frozenset({stop})))], 2)
    assert text == Written(expected[: expected.index(stop)], stop)


def conversation(given: list[int]) -> Script[list[list[int]]]:
    """Four stretches: to the limit, to a stop, with nothing given, with something given, afresh."""
    first = yield Ask(given, greedy(4))
    # The stop is what the target would say next: a stretch of no token, and the next one begins there.
    context = [*PREFIX, *given, *first.tokens]
    (following,) = plain_text(TARGET, context, 1)
    nothing = yield Ask([], greedy(9, frozenset({following})))
    second = yield Ask([], greedy(5))
    third = yield Ask([30, 31], greedy(3))
    last = yield Ask([given[0], 33], greedy(6), fresh=True)
    return [first.tokens, nothing.tokens, second.tokens, third.tokens, last.tokens]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_script_goes_on_in_its_own_context_or_afresh(batch: int) -> None:
    givens = [[10 + place, 20, 21][: 1 + place % 3] for place in range(5)]
    for given, stretches in zip(givens, run([conversation(given) for given in givens], batch), strict=True):
        first, nothing, second, third, last = stretches
        context = [*PREFIX, *given]
        assert first == plain_text(TARGET, context, 4)
        assert nothing == []
        context += first
        assert second == plain_text(TARGET, context, 5)
        context += [*second, 30, 31]
        assert third == plain_text(TARGET, context, 3)
        assert last == plain_text(TARGET, [*PREFIX, given[0], 33], 6)


@pytest.mark.parametrize("top_k", [None, 5])
def test_a_sampled_row_depends_on_its_own_generator_alone(top_k: int | None) -> None:
    """Not on the size of the batch, on who shares it, or on the order."""

    def scripts(count: int) -> list[Script[Written]]:
        return [
            one_stretch([10 + n, 11], Draw((0.7, 1.0)[n % 2], top_k, 4 + 7 * n % 18, ENDS))
            for n in range(count)
        ]

    alone = run(scripts(8), 1)
    assert len({tuple(text.tokens) for text in alone}) > 4
    assert run(scripts(8), 3) == alone
    assert run(scripts(8), 8) == alone
    assert run(scripts(3), 2) == alone[:3]
    assert run(scripts(8)[::-1], 3, seeds=list(range(8))[::-1]) == alone[::-1]
    assert run(scripts(8), 3, seeds=list(range(8, 16))) != alone


def test_a_hopeless_loop_ends_its_stretch() -> None:
    """48 tokens of a loop are enough to know; the cut leaves what would have been left of all 120."""
    target = tiny_target(seed=3)
    looping = plain_text(target, [1, 20], 120)
    writer = RowWriter(target, [1], 2, 130)
    ((_, text),) = writer.run([(one_stretch([20], greedy(120)), np.random.default_rng(0))])
    assert 48 <= len(text.tokens) < 120
    assert text == Written(looping[: len(text.tokens)], None)
    assert loop_cut(text.tokens) == loop_cut(looping)


def test_texts_must_fit_the_context() -> None:
    with pytest.raises(ValueError, match="texts of 300 tokens do not fit the target's context of 256"):
        RowWriter(tiny_target(), PREFIX, 2, 300)


def test_tokens_are_chosen_by_mass() -> None:
    """Uniforms spread evenly meet every token as often as it is likely; top-k and temperature as they say."""
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.0, 0.2, 0.3]], dtype=torch.float64))
    uniforms = ((np.arange(1000) + 0.5) / 1000).tolist()

    def shares(temperature: float, top_k: int | None) -> list[float]:
        draws = [Draw(temperature, top_k, 1, ENDS)] * 1000
        tokens = choose_tokens(logits.expand(1000, -1), draws, uniforms)
        return (np.bincount(tokens, minlength=5) / 1000).tolist()

    np.testing.assert_allclose(shares(1.0, None), [0.1, 0.4, 0, 0.2, 0.3], atol=0.002)
    np.testing.assert_allclose(shares(1.0, 2), [0, 4 / 7, 0, 0, 3 / 7], atol=0.002)
    np.testing.assert_allclose(shares(0.5, None), [1 / 30, 16 / 30, 0, 4 / 30, 9 / 30], atol=0.002)
    assert shares(0.0, None) == [0, 1, 0, 0, 0]
    assert choose_tokens(logits, [Draw(1.0, None, 1, ENDS)], [0.0]) == [0]
    # A token of probability 0 is never chosen, not even by a uniform of 0.
    forbidden = torch.tensor([[-torch.inf, 0.0, 0.0]])
    assert choose_tokens(forbidden, [Draw(1.0, None, 1, ENDS)], [0.0]) == [1]
    mixed = [Draw(1.0, None, 1, ENDS), Draw(0.0, None, 1, ENDS), Draw(1.0, 2, 1, ENDS)]
    assert choose_tokens(logits.expand(3, -1), mixed, [0.99, 0.99, 0.99]) == [4, 1, 4]
    with pytest.raises(ValueError, match="have no finite maximum"):
        choose_tokens(torch.full((1, 5), float("nan")), [greedy(1)], [0.0])
