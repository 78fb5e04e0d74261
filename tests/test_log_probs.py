"""Log-probabilities of emitted tokens: the target's own, whatever is drafted, filtered or processed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import FixedController, SpeculativeDecoder
from decoding.controller import PlainController
from decoding.drafters.base import Drafter
from decoding.records import CycleRecord
from decoding.sampling import Sampling
from decoding.session import Session
from tests.fakes import (
    OracleDrafter,
    ScriptController,
    drafter_called,
    plain_text,
    shared_target,
)

PROMPT = (5, 9, 4, 9, 5, 9, 4)
TOKENS = 10


def writes_into_its_scores(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    scores[:, ids[0, -1]] = -torch.inf
    return scores.mul_(0.5)


SAMPLINGS = (
    Sampling(0.0),
    Sampling(1.0),
    Sampling(0.7, top_k=5),
    Sampling(1.3, top_p=0.8, min_p=0.02),
    Sampling(0.0, repetition_penalty=1.7),
    Sampling(0.7, repetition_penalty=1.3, processors=(writes_into_its_scores,)),
)


@cache
def plain(sampling: Sampling) -> list[int]:
    return plain_text(shared_target(), PROMPT, TOKENS, sampling)


def reference(model: Any, text: list[int], prompt_length: int) -> list[float]:
    """One forward over the whole text without cache, mask or tree; in double precision."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0].to(torch.float64)
    rows = [logits[place - 1].tolist() for place in range(prompt_length, len(text))]
    tokens = text[prompt_length:]
    return [
        row[token] - torch.tensor(row, dtype=torch.float64).exp().sum().log().item()
        for row, token in zip(rows, tokens, strict=True)
    ]


def start(drafter: Drafter, **changed: Any) -> Session:
    settings_: dict[str, Any] = {
        "max_new_tokens": TOKENS,
        "end_ids": (),
        "sampling": Sampling(),
        "seed": 0,
        "log_probs": True,
    }
    return Session(shared_target(), drafter, PROMPT, **settings_ | changed)


def check(session: Session, records: list[CycleRecord]) -> None:
    for record in records:
        assert len(record.log_probs) == record.emitted, "one for each emitted token"
    values = [value for record in records for value in record.log_probs]
    assert values == pytest.approx(reference(shared_target().model, session.committed, len(PROMPT)), abs=1e-9)


@given(
    name=st.sampled_from(["eagle", "causal", "ngram", "oracle"]),
    rule=st.sampled_from(["coupled", "rejection"]),
    sampling=st.sampled_from(SAMPLINGS),
    draft=st.lists(st.booleans(), min_size=1, max_size=6),
    sizes=st.lists(st.sampled_from([0, 2, 5, 9]), min_size=1, max_size=3),
    wrong=st.sets(st.integers(0, TOKENS), max_size=4),
    branches=st.integers(1, 3),
    end=st.none() | st.integers(0, TOKENS - 1),
)
@settings(max_examples=30)
def test_they_are_those_of_a_fresh_forward(
    name: str,
    rule: str,
    sampling: Sampling,
    draft: list[bool],
    sizes: list[int],
    wrong: set[int],
    branches: int,
    end: int | None,
) -> None:
    """Trees, chains and plain steps; filters, penalty and a processor that writes change nothing in them."""
    full = plain(sampling)
    drafter = OracleDrafter(full, wrong, branches) if name == "oracle" else drafter_called(name)
    ends = () if end is None else (full[end],)
    session = start(drafter, rule=rule, sampling=sampling, end_ids=ends)
    check(session, list(session.run(ScriptController([*draft, True], [*sizes, 9]))))


@pytest.mark.parametrize("branches", [1, 3])
def test_they_follow_the_accepted_path(branches: int) -> None:
    """Blocks accepted whole and in part: the rows of a tree's path are not the first ones."""
    expected = plain(SAMPLINGS[1])
    session = start(OracleDrafter(expected, {5}, branches), sampling=SAMPLINGS[1])
    records = list(session.run(FixedController(3, 100)))
    assert [record.emitted for record in records] == [4, 2, 4]
    check(session, records)


def test_greedy_and_sampled_ones_of_one_text_are_equal() -> None:
    """At temperature 0 and forced by a processor at temperature 1: the same tokens, the same values."""
    expected = plain(SAMPLINGS[0])

    def force(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores.fill_(-torch.inf)[:, expected[ids.shape[1] - len(PROMPT)]] = 0.0
        return scores

    values = []
    for sampling in (SAMPLINGS[0], Sampling(1.0, processors=(force,))):
        session = start(OracleDrafter(expected, {3}, 2), sampling=sampling)
        records = list(session.run(FixedController(3, 9)))
        assert session.generated == expected
        values.append([value for record in records for value in record.log_probs])
    assert values[0] == values[1]


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_they_are_cut_with_the_text_and_left_out_unless_asked_for(
    folder: Path, head: Path, rule: Any
) -> None:
    decoder = SpeculativeDecoder.from_pretrained(str(folder), str(head), device="cpu", dtype="float64")
    options: dict[str, Any] = {"max_new_tokens": 16, "temperature": 1.0, "seed": 3, "rule": rule}
    prompt = decoder.encode("abab")
    for controller in (PlainController(), FixedController(3, 9)):
        full = decoder.generate(prompt, controller=controller, log_probs=True, **options)
        expected = reference(decoder.target.model, [*prompt, *full.token_ids], len(prompt))
        assert full.log_probs == pytest.approx(expected, abs=1e-9)
        assert len(full.token_ids) == 16
        end = full.token_ids[9]
        cut = decoder.generate(prompt, controller=controller, log_probs=True, stop_token_ids=[end], **options)
        length = full.token_ids.index(end) + 1
        assert cut.log_probs == pytest.approx(expected[:length], abs=1e-9)
        letter = next(letter for letter in full.text[3:] if letter != "\ufffd")
        stopped = decoder.generate(prompt, controller=controller, log_probs=True, stop=letter, **options)
        assert stopped.log_probs == pytest.approx(expected[: len(stopped.token_ids)], abs=1e-9)
        assert len(stopped.token_ids) < 16
        bare = decoder.generate(prompt, controller=controller, **options)
        assert bare.token_ids == full.token_ids
        assert bare.log_probs is None
        assert all(record.log_probs == () for record in bare.cycles)
