"""Several requests in one forward: each gets the bits that it gets alone."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.attention_mask import tree_attention_mask
from decoding.fast_forward import FastForward, Rows
from decoding.slot_cache import SlotCache
from tests.fast_world import fast_eagle, fast_target
from tests.test_fast_forward import depths_of, parents_of, tokens_of

# Context, how the rows of a tree hang on each other (empty: one row), whether only the last row's logits are
# wanted, whether the rows are a plain text instead of a tree.
REQUESTS = st.lists(
    st.tuples(st.integers(0, 70), st.lists(st.integers(0, 30), max_size=9), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)


def prepared(fast: FastForward, request: tuple[int, list[int], bool, bool], seed: int) -> Rows:
    """The request's rows on a cache that holds its context."""
    context, links, last, plain = request
    parents = parents_of(links)
    ids = tokens_of(seed, context + len(parents))
    cache = fast.new_cache()
    states = None
    if fast.packed.stack.embedding_norm:
        states = torch.from_numpy(
            np.random.default_rng(seed).normal(size=(len(ids), fast.packed.stack.hidden)).astype(np.float32)
        )
    if context:
        fast.forward(Rows(ids[:context], range(context), cache, states_H=states))
    places = range(len(parents)) if plain else depths_of(parents)
    return Rows(
        ids[context:],
        [context + place for place in places],
        cache,
        None if plain else tree_attention_mask(parents),
        None if states is None else states[context:],
        None if states is None or plain else [row // 2 for row in range(len(parents))],
        last,
    )


def held(cache: SlotCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, whoever laid them out."""
    panel = cache._keys.shape[-1]
    used = cache.length // panel
    return cache._keys[:, :, :used].clone(), cache._values[:, :, : cache.length].clone()


@given(requests=REQUESTS, head=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_each_request_gets_what_it_gets_alone(
    requests: list[tuple[int, list[int], bool, bool]], head: bool, seed: int
) -> None:
    fast = fast_eagle(fast_target()).fast if head else fast_target().fast
    assert fast is not None
    together = [prepared(fast, request, seed + number) for number, request in enumerate(requests)]
    alone = [prepared(fast, request, seed + number) for number, request in enumerate(requests)]
    for ours, rows, theirs in zip(fast.forward_many(together), together, alone, strict=True):
        wanted = fast.forward(theirs)
        assert torch.equal(ours.logits_RV, wanted.logits_RV)
        assert ours.best == wanted.best
        assert (ours.captured_RF is None) == (wanted.captured_RF is None)
        if ours.captured_RF is not None and wanted.captured_RF is not None:
            assert torch.equal(ours.captured_RF, wanted.captured_RF)
        assert rows.cache.length == theirs.cache.length
        for mine, other in zip(held(rows.cache), held(theirs.cache), strict=True):
            assert torch.equal(mine, other)


def test_any_team_gives_the_same() -> None:
    fast = fast_target().fast
    assert fast is not None
    requests = [(5, [0, 0, 1], False, False), (40, [], True, True), (0, [0, 1, 2], True, True)]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            rows = [prepared(fast, request, number) for number, request in enumerate(requests)]
            found.append([one.logits_RV for one in fast.forward_many(rows)])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))
