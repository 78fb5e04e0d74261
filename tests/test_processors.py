"""Logits processors and repetition penalty: drafting changes neither their calls nor the text."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import Controller, FixedController, PlainController
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.noise import NoiseStream
from decoding.records import CycleRecord
from decoding.sampling import LogitsProcessor, Sampling, TokenChooser, processed_logits, token_probs
from decoding.session import Session
from tests.fakes import (
    VOCABULARY,
    OracleDrafter,
    ScriptController,
    drafter_called,
    plain_text,
    shared_target,
)
from tests.test_sampling import bias

PROMPT = (5, 9, 4, 9, 5, 9, 4)
TOKENS = 10
DRAFTERS = ("eagle", "causal", "ngram", "oracle")
# Made anew for every request: some keep what they computed.
MADE: dict[str, Callable[[], LogitsProcessor]] = {
    "no repeated n-gram": lambda: transformers.NoRepeatNGramLogitsProcessor(2),
    "suppressed tokens": lambda: transformers.SuppressTokensLogitsProcessor([4, 9, 11, 30]),
    "no end yet": lambda: transformers.MinNewTokensLengthLogitsProcessor(len(PROMPT), 7, [*range(20)]),
    "sequence bias": lambda: transformers.SequenceBiasLogitsProcessor({(9, 4): -9.0, (9, 5): 4.0, (7,): 2.0}),
    "prefix": lambda: transformers.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed_after(ids[-1]), 1),
    "own": lambda: bias,
}


def allowed_after(token: torch.Tensor) -> list[int]:
    """Few tokens, other ones after every token."""
    return [(int(token) * 3 + step) % VOCABULARY for step in (1, 5, 6, 20)]


def start(drafter: Drafter, **changed: Any) -> Session:
    settings_: dict[str, Any] = {
        "max_new_tokens": TOKENS,
        "end_ids": (),
        "sampling": Sampling(),
        "seed": 0,
    }
    return Session(shared_target(), drafter, PROMPT, **settings_ | changed)


def decode(session: Session, controller: Controller) -> list[CycleRecord]:
    records = []
    for record in session.run(controller):
        records.append(record)
        assert session.cache.length == len(session.committed) - 1
    return records


class Recorder:
    """Keeps the ids of every call, and the scores; lets a token be chosen by how often it was called.

    A grammar's processor is like this: it moves one state on with every call, whatever the ids say.
    """

    def __init__(self) -> None:
        self.ids: list[list[int]] = []
        self.scores: list[torch.Tensor] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.ids += ids.tolist()
        self.scores.append(scores.clone())
        return scores.masked_fill(torch.arange(scores.shape[1]) % 3 == len(self.ids) % 3, -math.inf)


SCRIPTS = st.tuples(
    st.lists(st.booleans(), min_size=1, max_size=9).map(lambda draft: [*draft, True]),
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 9]), min_size=1, max_size=4).map(lambda sizes: [*sizes, 9]),
)
# Temperature, filters and processors of a request: every filter and every processor at some temperature.
CASES: list[tuple[float, dict[str, Any], tuple[str, ...]]] = [
    (0.0, {"repetition_penalty": 1.6}, ()),
    (1.0, {"repetition_penalty": 1.6}, ()),
    (0.7, {"min_p": 0.15}, ()),
    (1.0, {"repetition_penalty": 0.6, "top_k": 9}, ("own",)),
    (0.7, {"repetition_penalty": 1.3, "min_p": 0.05, "top_p": 0.9, "top_k": 20}, ("no end yet",)),
    (0.0, {}, ("no repeated n-gram",)),
    (1.0, {"min_p": 0.05}, ("no repeated n-gram", "own")),
    (1.0, {}, ("suppressed tokens",)),
    (0.7, {}, ("sequence bias",)),
    (0.0, {}, ("prefix", "own")),
    (1.0, {}, ("prefix",)),
]


def sampling_of(case: int) -> Sampling:
    """With processors of its own."""
    temperature, filters, made = CASES[case]
    return Sampling(temperature, processors=tuple(MADE[name]() for name in made), **filters)


@cache
def plain(case: int, seed: int) -> list[int]:
    return plain_text(shared_target(), PROMPT, TOKENS, sampling_of(case), seed)


@given(
    name=st.sampled_from(DRAFTERS),
    case=st.integers(0, len(CASES) - 1),
    script=SCRIPTS,
    wrong=st.sets(st.integers(0, TOKENS), max_size=4),
    branches=st.integers(1, 3),
    seed=st.integers(0, 1),
)
@settings(max_examples=44)
def test_text_is_plain_decodings_with_any_processor_and_penalty(
    name: str,
    case: int,
    script: tuple[list[bool], list[int]],
    wrong: set[int],
    branches: int,
    seed: int,
) -> None:
    expected = plain(case, seed)
    drafter = OracleDrafter(expected, wrong, branches) if name == "oracle" else drafter_called(name)
    session = start(drafter, sampling=sampling_of(case), seed=seed)
    decode(session, ScriptController(*script))
    assert session.generated == expected


@cache
def recorded(temperature: float, penalty: float | None) -> tuple[list[int], Recorder]:
    """Plain decoding's text and calls."""
    seen = Recorder()
    sampling = Sampling(temperature, repetition_penalty=penalty, processors=(seen,))
    return plain_text(shared_target(), PROMPT, TOKENS, sampling), seen


@given(
    name=st.sampled_from(DRAFTERS),
    temperature=st.sampled_from([0.0, 1.0]),
    penalty=st.sampled_from([None, 1.5]),
    script=SCRIPTS,
    wrong=st.sets(st.integers(0, TOKENS), max_size=4),
    branches=st.integers(1, 3),
    end=st.none() | st.integers(0, TOKENS - 1),
)
@settings(max_examples=20)
def test_a_processor_sees_one_call_a_token_in_order_whatever_is_drafted(
    name: str,
    temperature: float,
    penalty: float | None,
    script: tuple[list[bool], list[int]],
    wrong: set[int],
    branches: int,
    end: int | None,
) -> None:
    """The calls of plain decoding, ids and scores; none for a rejected row, none after the end."""
    full, plainly = recorded(temperature, penalty)
    expected = full if end is None else full[: full.index(full[end]) + 1]
    drafter = OracleDrafter(full, wrong, branches) if name == "oracle" else drafter_called(name)
    seen = Recorder()
    sampling = Sampling(temperature, repetition_penalty=penalty, processors=(seen,))
    session = start(drafter, end_ids=() if end is None else (full[end],), sampling=sampling)
    decode(session, ScriptController(*script))
    assert session.generated == expected
    assert seen.ids == [[*PROMPT, *expected[:place]] for place in range(len(expected))]
    theirs = plainly.scores[: len(expected)]
    torch.testing.assert_close(seen.scores, theirs, rtol=1e-9, atol=1e-9)


def test_drafts_are_accepted_with_a_processor_too() -> None:
    """Else the texts above would be equal for want of drafts: all of a right draft, all of a model's own."""
    for processors in ((), (MADE["prefix"](), bias)):
        sampling = Sampling(0.7, repetition_penalty=1.4, processors=processors)
        expected = plain_text(shared_target(), PROMPT, TOKENS, sampling)
        records = decode(start(OracleDrafter(expected), sampling=sampling), FixedController(3, 9))
        assert [record.emitted for record in records] == [4, 4, 2]


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 5.0},
        {"repetition_penalty": 0.5},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.3, "suppress_tokens": [4, 9, 11, 30]},
        {"sequence_bias": {(9, 4): -9.0, (9, 5): 4.0, (7,): 2.0}},
        {"min_new_tokens": 9, "eos_token_id": [*range(30)]},
    ],
    ids=str,
)
def test_greedy_text_is_that_of_transformers_generate(asked: dict[str, Any]) -> None:
    ends = asked.get("eos_token_id")
    ids = torch.tensor([PROMPT])
    generated = shared_target().model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=20,
        pad_token_id=0,
        **{"eos_token_id": None, **asked},
    )
    made: list[LogitsProcessor] = []
    if "no_repeat_ngram_size" in asked:
        made.append(transformers.NoRepeatNGramLogitsProcessor(2))
    if "suppress_tokens" in asked:
        made.append(transformers.SuppressTokensLogitsProcessor(asked["suppress_tokens"]))
    if "sequence_bias" in asked:
        made.append(transformers.SequenceBiasLogitsProcessor(asked["sequence_bias"]))
    if ends:
        made.append(transformers.MinNewTokensLengthLogitsProcessor(len(PROMPT), 9, ends))
    sampling = Sampling(repetition_penalty=asked.get("repetition_penalty"), processors=tuple(made))
    expected = generated[0, len(PROMPT) :].tolist()
    for drafter, controller in (
        (NgramDrafter(1), PlainController()),
        (OracleDrafter(expected, {3, 8}, 2), FixedController(4, 9)),
    ):
        session = start(drafter, max_new_tokens=20, end_ids=ends or (), sampling=sampling)
        decode(session, controller)
        assert session.generated == expected
    bare = shared_target().model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, eos_token_id=None
    )
    assert expected != bare[0, len(PROMPT) :].tolist(), "the setting changed nothing"


@given(
    name=st.sampled_from(DRAFTERS[:3]),
    case=st.integers(0, len(CASES) - 1),
    draft=st.lists(st.booleans(), min_size=1, max_size=9),
    seed=st.integers(0, 1),
)
@settings(max_examples=24)
def test_rejection_emits_what_the_targets_law_allows_alone(
    name: str, case: int, draft: list[bool], seed: int
) -> None:
    """A fresh forward without cache says what may follow; processors and filters alike."""
    sampling = sampling_of(case)
    session = start(drafter_called(name), rule="rejection", sampling=sampling, seed=seed)
    decode(session, ScriptController([*draft, True], [9]))
    assert len(session.generated) == TOKENS
    text = session.committed
    with torch.inference_mode():
        logits = shared_target().model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    for place in range(len(PROMPT), len(text)):
        allowed = token_probs(logits[place - 1], sampling, text[:place])
        assert allowed is not None
        assert allowed[text[place]] > 0


def test_chains_are_drawn_under_the_processors_of_their_own_context() -> None:
    """The target as its own drafter is never rejected then."""
    drafter = CausalLMDrafter(shared_target(), shared_target())
    for case in range(len(CASES)):
        session = start(drafter, rule="rejection", sampling=sampling_of(case))
        records = decode(session, FixedController(3, 1))
        assert [record.emitted for record in records] == [4, 4, 2], CASES[case]


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_that_forbids_everything_is_named_in_one_line(rule: str, temperature: float) -> None:
    """At the token where it does, not before."""

    def strict(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores if ids.shape[1] < len(PROMPT) + 5 else torch.full_like(scores, -math.inf)

    for drafter, depth in ((drafter_called("ngram"), 0), (drafter_called("eagle"), 3)):
        sampling = Sampling(temperature, processors=(strict,))
        session = start(drafter, rule=rule, sampling=sampling)
        with pytest.raises(ValueError, match=r"generated token 5 .* nothing to choose \(strict\)") as caught:
            decode(session, FixedController(depth, 9))
        assert "\n" not in str(caught.value)
        assert len(session.generated) <= 5


def test_each_row_is_processed_with_its_own_context() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(3))
    contexts = [[1], [1, 2], [1, 2, 3], [9, 8, 7, 6]]
    sampling = Sampling(0.0, repetition_penalty=9.0, processors=(bias,))
    chooser = TokenChooser(sampling, NoiseStream(0, PROMPT))
    alone = [chooser.choose(logits[row][None], [row], [contexts[row]])[0] for row in range(4)]
    assert chooser.choose(logits, list(range(4)), contexts) == alone


def test_a_processor_may_write_into_its_scores() -> None:
    """Not into the logits: log-probabilities and the next row are read from them."""

    def only_seven(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids.fill_(0)
        scores.fill_(-math.inf)[:, 7] = 0.0
        return scores

    logits, context = torch.randn(1, VOCABULARY), [3, 4]
    before = logits.clone()
    for dtype in (torch.float32, torch.float64):
        logits = before.to(dtype)
        sampling = Sampling(1.0, processors=(only_seven,))
        assert TokenChooser(sampling, NoiseStream(0, PROMPT)).choose(logits, [0], [context]) == [7]
        assert token_probs(logits[0], sampling, context) is not None
        assert torch.equal(logits, before.to(dtype))
        assert context == [3, 4]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, r"NoneType \(\), must be a tensor \(1, 6\)"),
        ([0.0] * 6, r"list \(\), must be a tensor \(1, 6\)"),
        (torch.zeros(6), r"Tensor \(6,\), must be a tensor \(1, 6\)"),
        (torch.zeros(1, 5), r"Tensor \(1, 5\)"),
        (torch.zeros(2, 6), r"Tensor \(2, 6\)"),
    ],
)
def test_a_processor_that_returns_no_scores_is_named_in_one_line(returned: Any, says: str) -> None:
    def forgetful(ids: torch.Tensor, scores: torch.Tensor) -> Any:
        return returned

    with pytest.raises(ValueError, match=f"logits processor forgetful returned {says}") as caught:
        processed_logits(torch.zeros(1, 6), Sampling(processors=(forgetful,)), [1])
    assert "\n" not in str(caught.value)
