"""Who decides over a drafter with a lookup: what is offered, what is refused, environments and policies."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs  # noqa: F401 (registers the environments)
from decoding.controller import USUAL_CHOICES, DraftView, FixedController, LookupHint, RootChoice
from decoding.exported import ExportedController, Network
from decoding.features import DepthFeatures, SizeFeatures
from decoding.sampling import Sampling
from decoding.session import Session
from tests.fake_policies import DEPTH, INFO, SIZE, SIZES
from tests.fakes import VOCABULARY, drafter_called
from tests.merged_world import merged
from tests.test_merged_session import PERIODIC, PROMPTS, TOKENS, AnyChoice, Chooses, decode, plain, start


@pytest.mark.parametrize("name", ["eagle", "causal", "ngram", "composite"])
@pytest.mark.parametrize("said", [RootChoice.LOOKUP, RootChoice.HEAD, 2, 7, -1, np.int64(3)])
def test_what_a_drafter_does_not_offer_is_one_clear_line(name: str, said: Any) -> None:
    for rule in ("coupled", "rejection"):
        session = start(drafter_called(name), PROMPTS[0], rule=rule)
        with pytest.raises(
            ValueError, match=r"Chooses answered .* to 'draft', this drafter offers"
        ) as caught:
            decode(session, Chooses(said, 1, 1))
        text = str(caught.value)
        assert text.endswith("offers 0 (PLAIN), 1 (ALL)")
        assert "\n" not in text


@pytest.mark.parametrize("said", [True, False, np.True_, np.int64(1), RootChoice.ALL, 0, 2, np.int64(3)])
def test_whole_numbers_of_any_kind_are_choices(said: Any) -> None:
    session = start(drafter_called("merged"), PROMPTS[0])
    decode(session, Chooses(said, 2, 4))
    assert session.generated == plain(tuple(PROMPTS[0]), Sampling(), 0)


def test_the_hint_follows_the_text() -> None:
    """The last token's earlier continuation, before anything is drafted."""
    hints: list[LookupHint] = []

    class Looks(FixedController):
        def wants_draft(self, view: DraftView) -> bool:
            assert view.lookup is not None
            hints.append(view.lookup)
            return False

    decode(start(merged("eagle"), [5, 9, 31, 12, 9, 31], sampling=PERIODIC), Looks(0, 1))
    assert [hint.match_length for hint in hints] == list(range(2, 2 + TOKENS - 1))
    assert hints[0] == LookupHint(2, 1.0, None)
    for name in ("eagle", "causal"):
        session = start(drafter_called(name), PROMPTS[0])
        cycle = session.cycle()
        assert next(cycle).view.lookup is None


@pytest.mark.parametrize("name", ["merged", "composite"])
def test_under_rejection_one_chain_of_drawn_tokens(name: str) -> None:
    """Only plain steps and drafts are offered; greedy text is plain decoding's; the same seed, the same text;
    a merged drafter's texts are those of its head alone."""
    for seed in range(2):
        for sampling in (Sampling(), Sampling(1.0), Sampling(0.8, top_k=5, repetition_penalty=1.2)):
            texts = []
            for drafter in (drafter_called(name), drafter_called(name), drafter_called("eagle")):
                controller = AnyChoice(seed)
                session = start(drafter, PROMPTS[0], rule="rejection", sampling=sampling, seed=seed)
                for record in decode(session, controller):
                    assert record.verification_size == record.draft_depth
                    assert record.emitted == record.accepted + 1
                assert set(controller.choices) <= set(USUAL_CHOICES)
                assert len(session.generated) == TOKENS
                assert all(0 <= token < VOCABULARY for token in session.generated)
                texts.append(session.generated)
            assert texts[0] == texts[1]
            if name == "merged":
                assert texts[0] == texts[2]
            if sampling == Sampling():
                assert texts[0] == plain(tuple(PROMPTS[0]), sampling, 0)


def open_merged(rng: np.random.Generator) -> Session:
    prompt = rng.integers(3, 40, size=3).tolist() * int(rng.integers(1, 3))
    return start(drafter_called("merged"), prompt, max_new_tokens=int(rng.integers(2, 12)))


def test_both_environments_run_it() -> None:
    """Their own checkers, then episodes: every observation within the bounds, joined levels seen by sizes."""
    partner = FixedController(3, 6)
    given: dict[str, Any] = {"open_session": open_merged, "partner": partner, "max_depth": 4}
    for env in (
        gymnasium.make("draftpace/Depth-v0", beam_width=3, **given),
        gymnasium.make("draftpace/Size-v0", verification_sizes=SIZES, **given),
    ):
        check_env(env.unwrapped)
        rng, verified = np.random.default_rng(0), 0
        observation, _ = env.reset(seed=3)
        for _ in range(60):
            assert env.observation_space.contains(observation)
            observation, _, ended, _, info = env.step(np.int64(rng.integers(env.action_space.n)))  # type: ignore[attr-defined]
            if ended:
                verified = max(verified, info["verification_size"])
                observation, _ = env.reset()
        assert verified >= 6


def test_an_exported_policy_decides() -> None:
    rng = np.random.default_rng(5)

    def network(features: DepthFeatures | SizeFeatures, actions: int) -> Network:
        weights = rng.normal(0, 1, (actions, len(features.names)))
        return Network([(weights, np.linspace(0, 1, actions))], "relu")

    controller = ExportedController(INFO, network(DEPTH, 2), network(SIZE, len(SIZES)))
    depths = set()
    for seed in range(4):
        session = start(drafter_called("merged"), PROMPTS[0], sampling=Sampling(1.0), seed=seed)
        depths |= {record.draft_depth for record in decode(session, controller)}
        assert session.generated == plain(tuple(PROMPTS[0]), Sampling(1.0), seed)
    assert controller.fallbacks == 0
    assert len(depths) >= 3
