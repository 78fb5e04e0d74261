"""Controllers and processors at fault: they may fail with a clear line, never change a text in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from decoding.controller import DraftView, FixedController
from decoding.sampling import Sampling
from tests.fakes import OracleDrafter
from tests.test_session import SAMPLINGS, decode, eagle, plain, start


class Meddler(FixedController):
    """Writes into all that it is shown."""

    def wants_level(self, view: DraftView) -> bool:
        view.depth_limit = 10**6
        view.tree.tokens[0] = 7
        return super().wants_level(view)

    def verification_size(self, view: DraftView) -> int:
        view.tree.depths[:] = [3] * len(view.tree.depths)
        return super().verification_size(view)


@pytest.mark.parametrize("name", ["eagle", "oracle"])
def test_a_controller_that_writes_into_its_view_changes_no_text(name: str) -> None:
    expected = plain(SAMPLINGS[1])
    drafter = OracleDrafter(expected, {2}, 2) if name == "oracle" else eagle()
    session = start(drafter, sampling=SAMPLINGS[1])
    decode(session, Meddler(3, 9))
    assert session.generated == expected


def test_a_request_that_failed_while_verifying_cannot_go_on() -> None:
    """Its cache holds rows that nobody accepted: a text that went on from there would be another's."""

    def fails_once(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(ids.shape[1])
        if len(calls) == 5:
            raise RuntimeError("no luck")
        return scores

    calls: list[int] = []
    session = start(OracleDrafter(plain(SAMPLINGS[0])), sampling=Sampling(processors=(fails_once,)))
    with pytest.raises(RuntimeError, match="no luck"):
        decode(session, FixedController(3, 9))
    with pytest.raises(ValueError, match="failed while a draft was verified: begin it anew"):
        decode(session, FixedController(3, 9))


@pytest.mark.parametrize("said", [2.5, None, "3", float("nan"), float("inf"), [1]])
def test_an_answer_of_another_type_is_named(said: Any) -> None:
    class Odd(FixedController):
        def verification_size(self, view: DraftView) -> int:
            return said

    with pytest.raises(ValueError, match=r"Odd answered .* to 'size', must be a whole number"):
        decode(start(OracleDrafter(plain(SAMPLINGS[0]))), Odd(2, 2))
