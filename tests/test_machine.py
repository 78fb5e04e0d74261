"""While native code decodes, torch keeps to one thread; outside of it, it has what it was given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from decoding.controller import DraftView, FixedController
from decoding.drafters.ngram import NgramDrafter
from decoding.machine import native_alone, native_threads
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from tests.fakes import tiny_target
from tests.fast_world import fast_target


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_native_code_has_the_threads_that_torch_gives_up() -> None:
    assert native_threads() == 3
    with native_alone():
        assert (torch.get_num_threads(), native_threads()) == (1, 3)
        with native_alone():
            assert (torch.get_num_threads(), native_threads()) == (1, 3)
        assert (torch.get_num_threads(), native_threads()) == (1, 3)
    assert (torch.get_num_threads(), native_threads()) == (3, 3)


def test_threads_come_back_after_a_fault() -> None:
    with pytest.raises(ZeroDivisionError), native_alone():
        raise ZeroDivisionError
    assert (torch.get_num_threads(), native_threads()) == (3, 3)


@pytest.mark.parametrize("fast", [True, False])
def test_a_cycle_gives_them_back_for_every_question_and_a_run_for_every_record(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = fast_target("tied") if fast else tiny_target()
    inside: set[int] = set()
    forward = TargetModel.forward

    def seen(self: TargetModel, *args: object, **kwargs: object) -> object:
        inside.add(torch.get_num_threads())
        return forward(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(TargetModel, "forward", seen)

    class Asked(FixedController):
        def wants_draft(self, view: DraftView) -> bool:
            assert (torch.get_num_threads(), native_threads()) == (1 if fast else 3, 3)
            return super().wants_draft(view)

    def session() -> Session:
        prompt = [5, 6, 5, 6, 5]
        return Session(
            target, NgramDrafter(1), prompt, max_new_tokens=9, end_ids=(), sampling=Sampling(), seed=0
        )

    for _ in session().run(Asked(2, 2)):
        assert torch.get_num_threads() == 3
        assert not torch.is_inference_mode_enabled()
    asked = session().cycle()
    next(asked)
    assert (torch.get_num_threads(), native_threads()) == (3, 3)
    assert not torch.is_inference_mode_enabled()
    assert inside == {1 if fast else 3}
