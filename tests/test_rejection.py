"""The `rejection` rule in a session: real draws, real models. Its exact law is in test_rejection_law.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.chain import SeededDraws
from decoding.controller import Controller, DraftView, FixedController, PlainController
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.exported import ExportedController, Network
from decoding.features import DepthFeatures, SizeFeatures
from decoding.records import CycleRecord
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.verify import accept_rejection
from tests.fake_policies import DEPTH, INFO, SIZE, SIZES
from tests.fakes import (
    OracleDrafter,
    ScriptController,
    drafter_called,
    plain_text,
    shared_target,
)

PROMPT = (5, 9, 4, 9, 5, 9, 4)
TOKENS = 12
TARGET = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
DRAFT = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


DRAFTERS = ("eagle", "causal", "ngram")


def start(drafter: Drafter, **changed: Any) -> Session:
    settings: dict[str, Any] = {
        "max_new_tokens": TOKENS,
        "end_ids": (),
        "sampling": Sampling(),
        "seed": 0,
        "rule": "rejection",
    }
    return Session(shared_target(), drafter, PROMPT, **settings | changed)


def decode(session: Session, controller: Controller) -> list[CycleRecord]:
    records = []
    for record in session.run(controller):
        records.append(record)
        assert session.cache.length == len(session.committed) - 1
        assert record.verification_size == record.draft_depth, "a drawn token is always verified"
        assert record.emitted == record.accepted + 1
    return records


@pytest.mark.slow
@pytest.mark.parametrize(("falls_back", "law"), [(False, (0.5, 0.3, 0.2)), (True, (0.35, 0.39, 0.26))])
def test_two_hundred_thousand_draws(
    falls_back: bool, law: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 4 standard errors of the target; with the wrong fallback as near to (.35, .39, .26)."""
    if falls_back:
        monkeypatch.setattr("decoding.verify._after_rejection", lambda target_V, draft_V: target_V)
    draws, count = SeededDraws(7, PROMPT), [0, 0, 0]
    number = 200_000
    for _ in range(number):
        drafted = draws.token(DRAFT)
        verdict = accept_rejection([drafted], [DRAFT], lambda row: TARGET, draws, lambda token: True)
        count[verdict.emitted[0]] += 1
    for seen, share in zip(count, law, strict=True):
        assert abs(seen / number - share) < 4 * (share * (1 - share) / number) ** 0.5


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("depth", [0, 1, 3, 6])
def test_greedy_text_is_plain_decodings(name: str, depth: int) -> None:
    """Both laws are one token then: the rule accepts it or replaces it by the target's."""
    for sampling in (Sampling(), Sampling(repetition_penalty=1.4)):
        session = start(drafter_called(name), sampling=sampling)
        decode(session, FixedController(depth, 1))
        assert session.generated == plain_text(shared_target(), PROMPT, TOKENS, sampling)


@pytest.mark.parametrize("wrong", [frozenset(), frozenset({2, 7})])
def test_the_law_at_a_drafted_token_knows_the_tokens_drafted_before(wrong: frozenset[int]) -> None:
    """The repetition penalty and a processor count drafted tokens as said, also where all are accepted."""

    def no_token_twice_in_four(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, ids[0, -4:], -torch.inf)

    for sampling in (Sampling(repetition_penalty=3.0), Sampling(processors=(no_token_twice_in_four,))):
        expected = plain_text(shared_target(), PROMPT, TOKENS, sampling)
        session = start(OracleDrafter(expected, wrong), sampling=sampling)
        records = decode(session, FixedController(4, 1))
        assert session.generated == expected
        assert sum(record.accepted for record in records) >= 6


@given(
    name=st.sampled_from(DRAFTERS),
    sampling=st.sampled_from(
        [
            Sampling(1.0),
            Sampling(0.7, top_k=5),
            Sampling(1.0, top_p=0.8, repetition_penalty=1.2),
            Sampling(1.0, min_p=0.1),
        ]
    ),
    draft=st.lists(st.booleans(), min_size=1, max_size=9),
    seed=st.integers(0, 3),
)
def test_equal_seeds_and_answers_give_equal_texts_of_allowed_tokens(
    name: str, sampling: Sampling, draft: list[bool], seed: int
) -> None:
    """Twice the same; and every token has positive probability under the target."""
    texts = []
    for _ in range(2):
        session = start(drafter_called(name), sampling=sampling, seed=seed)
        decode(session, ScriptController([*draft, True], [10**9, 0]))
        texts.append(session.generated)
    assert texts[0] == texts[1]
    assert len(texts[0]) == TOKENS


def test_a_draft_equal_to_the_target_is_never_rejected() -> None:
    """The target as its own drafter, with every filter: Z = 0."""
    drafter = CausalLMDrafter(shared_target(), shared_target())
    for sampling in (Sampling(1.0), Sampling(0.8, top_k=7, top_p=0.9, min_p=0.05, repetition_penalty=1.3)):
        session = start(drafter, sampling=sampling)
        records = decode(session, FixedController(3, 1))
        assert [record.emitted for record in records] == [4, 4, 4]


def test_plain_steps_follow_the_seed() -> None:
    texts = []
    for seed in (0, 0, 1):
        session = start(drafter_called("eagle"), sampling=Sampling(1.0), seed=seed)
        decode(session, PlainController())
        texts.append(session.generated)
    assert texts[0] == texts[1] != texts[2]


def test_depth_is_the_controllers_and_held_to_the_tokens_left() -> None:
    session = start(drafter_called("eagle"), sampling=Sampling(1.0))
    for record in session.run(FixedController(4, 9)):
        left = TOKENS - (record.context_length - len(PROMPT))
        assert record.draft_depth == min(4, left - 1)


def test_controllers_look_at_the_next_distribution_and_are_not_asked_for_a_size() -> None:
    class Looks(FixedController):
        sums: list[float] = []

        def wants_draft(self, view: DraftView) -> bool:
            return self.wants_level(view)

        def wants_level(self, view: DraftView) -> bool:
            assert view.next_probs is not None
            probs = view.next_probs()
            assert probs is not None
            assert probs.shape == (shared_target().vocabulary_size,)
            assert (probs > 0).sum() <= 5
            self.sums.append(float(probs.sum()))
            return super().wants_level(view)

        def verification_size(self, view: DraftView) -> int:
            raise AssertionError("the size is the depth")

    decode(start(drafter_called("eagle"), sampling=Sampling(1.0, top_k=5)), Looks(2, 1))
    assert Looks.sums == pytest.approx([1.0] * len(Looks.sums))


def test_an_exported_policy_decides_the_depth() -> None:
    """Made for `coupled`, whose features it reads from what was drawn; its size has no say."""
    rng = np.random.default_rng(5)

    def network(features: DepthFeatures | SizeFeatures, actions: int) -> Network:
        weights = rng.normal(0, 1, (actions, len(features.names)))
        return Network([(weights, np.linspace(0, 1, actions))], "relu")  # rather one level more

    controller = ExportedController(INFO, network(DEPTH, 2), network(SIZE, len(SIZES)))
    depths = set()
    for seed in range(6):
        session = start(drafter_called("eagle"), sampling=Sampling(1.0), seed=seed)
        depths |= {record.draft_depth for record in decode(session, controller)}
    assert controller.fallbacks == 0
    assert len(depths) >= 3


def test_coupled_views_have_no_next_distribution() -> None:
    class Looks(FixedController):
        def wants_draft(self, view: DraftView) -> bool:
            assert view.next_probs is None
            return True

    for _ in start(OracleDrafter([1] * TOKENS), rule="coupled").run(Looks(1, 1)):
        pass


def test_a_mask_that_forbids_the_proposal_ends_the_draft() -> None:
    """Lookup has one token to propose; where a processor forbids it there is nothing to draw."""

    def forbid_all_but_seven(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        masked = torch.full_like(scores, -torch.inf)
        masked[:, 7] = scores[:, 7]
        return masked

    sampling = Sampling(1.0, processors=(forbid_all_but_seven,))
    session = start(drafter_called("ngram"), sampling=sampling)
    records = decode(session, FixedController(3, 1))
    assert set(session.generated) == {7}
    assert records[0].draft_depth == 0
    assert records[-1].accepted > 0, "once sevens repeat, lookup proposes them"


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="rule is 'typical', must be one of coupled, rejection"):
        start(drafter_called("ngram"), rule="typical")


def test_writing_into_what_is_shown_changes_neither_draws_nor_verification() -> None:
    """The same text as a controller that only looks."""

    class Looks(FixedController):
        def wants_level(self, view: DraftView) -> bool:
            assert view.next_probs is not None
            self.meddle(view, view.next_probs())
            return super().wants_level(view)

        def meddle(self, view: DraftView, probs: Any) -> None:
            return None

    class Meddles(Looks):
        def meddle(self, view: DraftView, probs: Any) -> None:
            probs.fill_(1.0)
            view.tree.tokens[-1] = 3
            view.depth_limit = 10**6

    texts = []
    for controller in (Looks(3, 1), Meddles(3, 1)):
        session = start(drafter_called("causal"), sampling=Sampling(1.0), seed=4)
        decode(session, controller)
        texts.append(session.generated)
    assert texts[0] == texts[1]
