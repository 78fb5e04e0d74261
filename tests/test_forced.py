"""A forced text is what is said, whatever is drafted, and the own choice is computed all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fakes import END_ID, VOCABULARY, OracleDrafter, tiny_eagle, tiny_target
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import Controller, FixedController, PlainController
from decoding.forced import ForcedChooser, forced
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.workload import Request
from evaluation.blocks import on_plain_text
from evaluation.protocol import Arm
from evaluation.text_check import RandomController

TARGET = tiny_target()
EAGLE = tiny_eagle(TARGET)
TOKENS = [token for token in range(VOCABULARY) if token != END_ID]


def session(
    drafter: Any = EAGLE, temperature: float = 0.7, seed: int = 3, most: int = 12, **more: Any
) -> Session:
    return Session(
        TARGET,
        drafter,
        [5, 6, 7],
        max_new_tokens=12,
        end_ids={END_ID},
        sampling=Sampling(temperature=temperature),
        seed=seed,
        **more,
    )


def said(one: Session, controller: Controller) -> list[int]:
    for _ in one.run(controller):
        pass
    return one.generated


@settings(max_examples=25, deadline=None)
@given(
    text=st.lists(
        st.integers(0, VOCABULARY - 1).filter(lambda token: token != END_ID), min_size=12, max_size=12
    ),
    temperature=st.sampled_from([0.0, 0.7]),
    chance=st.integers(0, 100),
)
def test_every_controller_says_the_given_text(text: list[int], temperature: float, chance: int) -> None:
    rng = np.random.default_rng(chance)
    controllers: Sequence[Controller] = [
        PlainController(),
        FixedController(3, 5),
        RandomController(4, 8, rng),
    ]
    for controller in controllers:
        assert said(forced(session(temperature=temperature), text), controller) == text


def test_a_draft_of_the_text_is_accepted_and_another_is_not() -> None:
    text = [9, 8, 7, 6, 5, 4, 3 + END_ID, 9, 8, 7, 6, 5]
    assert END_ID not in text
    right = list(forced(session(OracleDrafter(text)), text).run(FixedController(4, 4)))
    assert [one.emitted for one in right] == [5, 5, 2]
    wrong = list(
        forced(session(OracleDrafter([token + 1 for token in text])), text).run(FixedController(4, 4))
    )
    assert [one.emitted for one in wrong] == [1] * 12


def test_the_own_text_has_no_disagreement_and_another_has_some() -> None:
    own = said(session(), PlainController())
    for text, least, most in ((own, 0, 0), ([(token + 1) % 3 + 10 for token in own], 1, 99)):
        one = forced(session(), text)
        chooser = one.chooser
        assert isinstance(chooser, ForcedChooser)
        assert said(one, PlainController()) == text
        assert least <= chooser.disagreements <= most


def test_beyond_the_text_the_own_choice_is_said_and_an_end_token_ends() -> None:
    own = said(session(), PlainController())
    assert said(forced(session(), own[:4]), FixedController(2, 3)) == own
    assert said(forced(session(), [9, END_ID, 9]), FixedController(2, 3)) == [9, END_ID]


def test_what_cannot_be_forced() -> None:
    begun = session()
    next(iter(begun.run(PlainController())))
    with pytest.raises(ValueError, match="has generated 1 tokens: force a text before"):
        forced(begun, [1])
    with pytest.raises(ValueError, match="cannot be forced under the rule 'rejection'"):
        forced(session(rule="rejection"), [1])


def test_arms_of_a_block_decode_what_plain_decoding_says() -> None:
    """Arms of other seeds, which alone write other texts: as in half precision."""
    request = Request("q", ("x",), None, None, "q")
    seeds = iter(range(100))

    def opened(one: Request) -> Session:
        return session(seed=next(seeds))

    other = Arm("other", PlainController, "rule", open_session=lambda _: session(seed=99))
    free = [said(opened(request), PlainController()) for _ in range(3)]
    assert len({tuple(text) for text in free}) > 1
    arms, opener = on_plain_text([Arm("plain", PlainController, "plain"), other], request, opened)
    texts = [said((arm.open_session or opener)(request), FixedController(2, 2)) for arm in arms]  # type: ignore[arg-type]
    assert texts[0] == texts[1] == said(session(seed=3), PlainController())
