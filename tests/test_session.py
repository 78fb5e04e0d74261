"""Exact text: whatever is drafted and however much of it is verified, the text is plain decoding's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding import timing
from decoding.controller import Controller, DraftView, FixedController
from decoding.drafters.base import Drafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.kv_cache import TargetCache
from decoding.records import CycleRecord
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from tests.fakes import OracleDrafter, ScriptController, plain_text, tiny_eagle, tiny_target

PROMPT = (5, 9, 4, 9, 5, 9, 4)
SAMPLINGS = (
    Sampling(0.0),
    Sampling(1.0),
    Sampling(0.7),
    Sampling(1.0, top_k=5),
    Sampling(0.7, top_p=0.8),
    Sampling(1.0, top_k=12, top_p=0.9),
)
TOKENS = 10


@cache
def target() -> TargetModel:
    return tiny_target(layers=2)


@cache
def eagle() -> EagleDrafter:
    return tiny_eagle(target(), beam_width=3)


def drafter_called(name: str) -> Drafter:
    return eagle() if name == "eagle" else NgramDrafter(1)


@cache
def plain(
    sampling: Sampling, seed: int = 0, tokens: int = TOKENS, prompt: tuple[int, ...] = PROMPT
) -> list[int]:
    return plain_text(target(), prompt, tokens, sampling, seed)


def start(drafter: Drafter, prompt: Sequence[int] = PROMPT, **changed: Any) -> Session:
    settings: dict[str, Any] = {"max_new_tokens": TOKENS, "end_ids": (), "sampling": Sampling(), "seed": 0}
    return Session(target(), drafter, prompt, **settings | changed)


def decode(session: Session, controller: Controller) -> list[CycleRecord]:
    """Run to the end; after every cycle the cache holds all committed tokens but the last."""
    records = []
    for record in session.run(controller):
        records.append(record)
        assert session.cache.length == len(session.committed) - 1
    return records


@pytest.mark.parametrize("name", ["eagle", "ngram"])
def test_text_is_plain_decodings_at_every_depth_and_size(name: str) -> None:
    """Depth 0..6, size 1..20; every sampling setting meets every depth and every size."""
    accepted = 0
    for depth, size in product(range(7), range(1, 21)):
        sampling = SAMPLINGS[(depth + size) % len(SAMPLINGS)]
        session = start(drafter_called(name), sampling=sampling)
        records = decode(session, FixedController(depth, size))
        assert session.generated == plain(sampling), (depth, size, sampling)
        accepted += sum(record.accepted for record in records)
    assert accepted > 50, "hardly anything was accepted: the sweep proves little"


@given(
    name=st.sampled_from(["eagle", "ngram", "oracle"]),
    sampling=st.sampled_from(SAMPLINGS),
    draft=st.lists(st.booleans(), min_size=1, max_size=12),
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 5, 9, 40, 10**9, -7]), min_size=1, max_size=5),
    wrong=st.sets(st.integers(0, TOKENS)),
    branches=st.integers(1, 3),
    seed=st.integers(0, 2),
)
def test_no_controller_changes_the_text(
    name: str,
    sampling: Sampling,
    draft: list[bool],
    sizes: list[int],
    wrong: set[int],
    branches: int,
    seed: int,
) -> None:
    """Answers at random, sizes of 0, negative and beyond all bounds, stopping anywhere."""
    expected = plain(sampling, seed)
    drafter = OracleDrafter(expected, wrong, branches) if name == "oracle" else drafter_called(name)
    session = start(drafter, sampling=sampling, seed=seed)
    if any(draft):
        decode(session, ScriptController(draft, sizes))
    else:
        decode(session, ScriptController([True, False], sizes))
    assert session.generated == expected


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_text_is_a_function_of_prompt_and_seed(sampling: Sampling) -> None:
    """Other seeds give other texts at temperature > 0, the same text at 0."""
    texts = {tuple(plain(sampling, seed)) for seed in range(3)}
    assert len(texts) == (1 if sampling.temperature == 0 else 3)


@pytest.mark.parametrize("branches", [1, 3])
def test_full_accept_then_reject_then_full_accept(branches: int) -> None:
    """Depth 3, the wrong token at place 5: a block of 4, one of 2 (cut at the mistake), then 4 again."""
    expected = plain(SAMPLINGS[1])
    session = start(OracleDrafter(expected, {5}, branches), sampling=SAMPLINGS[1])
    records = decode(session, FixedController(3, 100))
    assert session.generated == expected
    assert [record.emitted for record in records] == [4, 2, 4]
    assert [record.accepted_by_depth for record in records] == [
        (True, True, True),
        (True, False),
        (True, True, True),
    ]
    assert [record.context_length for record in records] == [7, 11, 13]


def test_records_count_what_was_drafted_verified_and_accepted() -> None:
    """Three branches: a level has 3 nodes below the root and 6 below two grown nodes."""
    expected = plain(SAMPLINGS[0])
    session = start(OracleDrafter(expected, branches=3))
    (first, *_) = decode(session, FixedController(3, 7))
    assert (first.draft_depth, first.verification_size) == (3, 7)
    assert first.accepted == sum(first.accepted_by_depth) == first.emitted - 1
    assert first.token_ids == tuple(expected[: first.emitted])


@pytest.mark.parametrize("offset", range(TOKENS))
def test_end_of_text_at_every_offset_of_a_block(offset: int) -> None:
    """The ending id is emitted, nothing after it, at whatever place of a block of 1 to 5 it falls."""
    full = plain(SAMPLINGS[1])
    expected = full[: full.index(full[offset]) + 1]
    assert plain_text(target(), PROMPT, TOKENS, SAMPLINGS[1], end_ids=[full[offset]]) == expected
    for depth, branches in product((1, 2, 3, 4), (1, 2)):
        for known in (full, full[: len(expected)]):  # with and without a draft beyond the end
            oracle = OracleDrafter(known, branches=branches)
            session = start(oracle, sampling=SAMPLINGS[1], end_ids=[full[offset]])
            records = decode(session, FixedController(depth, 100))
            assert session.generated == expected
            assert session.finished
            assert sum(record.emitted for record in records) == len(expected)
            with pytest.raises(ValueError, match="finished"):
                next(session.cycle())


def test_token_limit_at_every_offset_of_a_block() -> None:
    """Exactly `max_new_tokens` are emitted, and no level is drafted that could not be."""
    full = plain(SAMPLINGS[0])
    for limit, depth in product(range(1, TOKENS + 1), (1, 2, 4, 6)):
        session = start(OracleDrafter(full), max_new_tokens=limit)
        records = decode(session, FixedController(depth, 20))
        assert session.generated == full[:limit]
        assert records[-1].draft_depth <= records[-1].emitted - 1
        assert session.tokens_left == 0


def test_depth_one_never_accepts_more_than_one() -> None:
    session = start(OracleDrafter(plain(SAMPLINGS[0]), branches=3))
    records = decode(session, FixedController(1, 20))
    assert {record.accepted_by_depth for record in records} <= {(True,), ()}
    assert [record.emitted for record in records] == [2] * 5


@pytest.mark.parametrize("name", ["oracle", "eagle", "ngram"])
@pytest.mark.parametrize("depth", range(5))
def test_levels_drafted_are_the_depth_asked(name: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One `extend` a level, none at depth 0; only the limit or a drafter without ideas stops earlier."""
    drafter = OracleDrafter(plain(SAMPLINGS[0])) if name == "oracle" else drafter_called(name)
    session = start(drafter)
    outcomes: list[bool] = []
    extend = session._draft.extend

    def counted() -> bool:
        outcomes.append(extend())
        return outcomes[-1]

    monkeypatch.setattr(session._draft, "extend", counted)
    controller = FixedController(depth, 8)
    for record in session.run(controller):
        levels = sum(outcomes)
        assert record.draft_depth == levels <= depth
        left_before = session.tokens_left + record.emitted
        if name != "ngram":
            assert levels == min(depth, left_before - 1)
        if depth == 0:
            assert outcomes == []
            assert record.verification_size == 0
        outcomes.clear()


@pytest.mark.parametrize("name", ["eagle", "ngram"])
def test_one_token_prompt(name: str) -> None:
    """There is no feature to draft from yet: the first cycle is plain, and all is as plain decoding."""
    session = start(drafter_called(name), prompt=[7], sampling=SAMPLINGS[1])
    records = decode(session, FixedController(3, 9))
    assert records[0].draft_depth == 0
    assert session.generated == plain(SAMPLINGS[1], prompt=(7,))


@pytest.mark.parametrize("name", ["eagle", "ngram"])
def test_context_limit(name: str) -> None:
    """A prompt may fill the context but for one token; the text stops where the context is full."""
    small = tiny_target(context=16, layers=2)
    drafter: Drafter = tiny_eagle(small) if name == "eagle" else NgramDrafter(1)
    for length in (9, 14, 15):
        prompt = [3 + i % 4 for i in range(length)]
        session = Session(
            small, drafter, prompt, max_new_tokens=99, end_ids=(), sampling=SAMPLINGS[1], seed=0
        )
        decode(session, FixedController(4, 8))
        assert len(session.committed) == 16
        assert session.generated == plain_text(small, prompt, 99, SAMPLINGS[1])
    with pytest.raises(ValueError, match="prompt has 16 tokens, the model's context holds 16"):
        Session(small, drafter, [3] * 16, max_new_tokens=1, end_ids=(), sampling=Sampling(), seed=0)


@pytest.mark.parametrize("branches", [1, 3])
def test_cache_content_is_that_of_a_fresh_prefill(branches: int) -> None:
    """After blocks accepted whole, in part and not at all, keys and values are the committed tokens' own."""
    expected = plain(SAMPLINGS[1])
    session = start(OracleDrafter(expected, {0, 5}, branches), sampling=SAMPLINGS[1])
    for _ in session.run(FixedController(3, 100)):
        fresh = target().new_cache()
        target().forward(session.committed[:-1], fresh)
        length = session.cache.length
        assert isinstance(session.cache, TargetCache)
        assert isinstance(fresh, TargetCache)
        for ours, theirs in zip(session.cache.layers, fresh.layers, strict=True):
            for part in ("_keys_BGTD", "_values_BGTD"):
                kept = getattr(ours.buffer, part)[:, :, :length]
                torch.testing.assert_close(kept, getattr(theirs.buffer, part)[:, :, :length])


def test_phases_are_charged_to_who_spent_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the parts move: a level 3, a verification 50, a commit 11, an answer 7."""
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def spending(seconds: float, function: Any) -> Any:
        def spend(*args: Any, **kwargs: Any) -> Any:
            clock[0] += seconds
            return function(*args, **kwargs)

        return spend

    session = start(OracleDrafter(plain(SAMPLINGS[0])))
    monkeypatch.setattr(session._draft, "extend", spending(3, session._draft.extend))
    monkeypatch.setattr(target(), "forward", spending(50, target().forward))
    monkeypatch.setattr(session.cache, "keep", spending(11, session.cache.keep))

    class Slow(FixedController):
        def wants_draft(self, view: DraftView) -> bool:
            clock[0] += 7
            return super().wants_draft(view)

        wants_level = spending(7, FixedController.wants_level)
        verification_size = spending(7, FixedController.verification_size)

    before = 0.0
    for record in session.run(Slow(2, 2)):
        seconds = record.seconds
        if record.draft_depth == 2:  # questions: draft, after level 1, after level 2, size
            assert (seconds.draft, seconds.verify, seconds.commit, seconds.policy) == (6, 50, 11, 28)
        assert seconds.total == clock[0] - before
        assert seconds.work == seconds.total - seconds.policy
        assert record.tokens_per_second == record.emitted / seconds.total
        before = clock[0]


def test_phases_sum_to_the_cycles_wall_clock() -> None:
    """Within 1 % (and 5 ms for what the machine does between two readings) in the calmest of the cycles."""
    session = start(eagle(), max_new_tokens=40)
    gaps = []
    cycles = session.run(FixedController(3, 8))
    while not session.finished:
        started = timing.now(target().device)
        record = next(cycles)
        wall = timing.now(target().device) - started
        assert record.seconds.total <= wall
        gaps.append(wall - record.seconds.total - 0.01 * wall)
    assert min(gaps) <= 0.005


@pytest.mark.parametrize(
    ("prompt", "changed", "message"),
    [
        ([], {}, "prompt is empty"),
        ([3, 40], {}, r"token id outside 0\.\.39: its ids span 3\.\.40"),
        ([-1, 3], {}, r"token id outside 0\.\.39: its ids span -1\.\.3"),
        ([3], {"max_new_tokens": 0}, "max_new_tokens is 0, must be a whole number >= 1"),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    prompt: list[int], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        start(NgramDrafter(), prompt=prompt, **changed)
    assert "\n" not in str(caught.value)


def test_a_drafter_that_reads_other_layers_is_refused() -> None:
    other = tiny_target()  # captures nothing
    with pytest.raises(ValueError, match=r"eagle3 reads layers .*, the target captures \(\)"):
        Session(other, eagle(), [3], max_new_tokens=1, end_ids=(), sampling=Sampling(), seed=0)
