"""The target's distribution and the choice of a token: against a plain reference and transformers' own
processors; ties, damaged logits, bad settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.noise import NoiseStream
from decoding.sampling import Sampling, TokenChooser, scaled_logits, token_probs
from tests.fakes import tiny_target
from tests.test_plain import reference_next, reference_uniform

PROMPT = [4, 2]
# Few distinct values: ties at the k-th place and at the edge of the nucleus are common.
LOGITS = st.lists(st.sampled_from([-math.inf, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=2, max_size=9)


@given(
    logits=LOGITS.filter(lambda logits: max(logits) > -math.inf),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.none() | st.integers(1, 10),
    # Sums of few such weights never come within rounding of these.
    top_p=st.none() | st.sampled_from([1e-9, 0.1237, 0.5119, 0.7771, 0.9991, 1.0]),
    seed=st.integers(0, 5),
)
def test_chosen_token_is_the_plain_references(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p)
    chosen = TokenChooser(sampling, NoiseStream(seed, PROMPT)).choose(torch.tensor([logits]), [3])
    uniforms = [reference_uniform(seed, PROMPT, 3, token) for token in range(len(logits))]
    assert chosen == [reference_next(logits, sampling, uniforms)]


def support(logits: list[float], **settings: Any) -> list[int]:
    """Ids that can be chosen at temperature 1."""
    (row,) = scaled_logits(torch.tensor([logits]), Sampling(1.0, **settings))
    return row.isfinite().nonzero()[:, 0].tolist()


def test_top_k_keeps_all_that_tie_with_the_kth() -> None:
    assert support([1.0, 5.0, 1.0, 0.0, 1.0], top_k=1) == [1]
    assert support([1.0, 5.0, 1.0, 0.0, 1.0], top_k=2) == [0, 1, 2, 4]
    assert support([1.0, 5.0, 1.0, 0.0, 1.0], top_k=99) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_fewest_that_reach_it_lower_ids_first() -> None:
    even = [0.0, 0.0, 0.0, 0.0]  # a quarter each
    assert support(even, top_p=0.2) == [0]
    assert support(even, top_p=0.3) == [0, 1]
    assert support(even, top_p=0.75) == [0, 1, 2]
    assert support(even, top_p=1e-30) == [0]
    assert support([0.0, 9.0, 0.0, 0.0], top_p=0.5) == [1]
    assert support(even, top_p=1.0) == [0, 1, 2, 3]


def test_top_p_breaks_ties_by_id_in_a_large_vocabulary_too() -> None:
    """An unstable sort keeps the order of a few tokens, not of thousands."""
    logits = [1.0, 0.0] * 2500
    assert support(logits, top_p=0.3) == list(range(0, 2 * 1026, 2))


def test_top_p_counts_what_top_k_left() -> None:
    """Two of four even tokens stay after top-k of the untied pair; each is then half of the whole."""
    assert support([1.0, 1.0, 0.0, 0.0], top_k=2, top_p=0.5) == [0]
    assert support([1.0, 1.0, 0.0, 0.0], top_k=2, top_p=0.51) == [0, 1]


def test_rows_do_not_know_of_each_other() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 30)
    for sampling in (Sampling(), Sampling(1.0), Sampling(0.7, 4), Sampling(0.7, None, 0.6)):
        chooser = TokenChooser(sampling, NoiseStream(0, PROMPT))
        together = chooser.choose(logits, [7, 8, 8, 9, 9])
        alone = [chooser.choose(logits[row : row + 1], [7 + (row + 1) // 2])[0] for row in range(5)]
        assert together == alone


def test_ties_go_to_the_lowest_id() -> None:
    """At temperature 0, and between equal perturbed values."""

    class Silent(NoiseStream):
        def gumbel(self, indices: Any, ids_N: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(indices), len(ids_N), dtype=torch.float64)

    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0]])
    for sampling in (Sampling(), Sampling(1.0), Sampling(1.0, top_k=4), Sampling(1.0, top_p=0.9)):
        assert TokenChooser(sampling, Silent(0, PROMPT)).choose(logits, [0]) == [1]


@given(
    logits=st.lists(st.floats(-20, 20), min_size=12, max_size=12),
    settings_=st.sampled_from([(3, None), (None, 0.7), (6, 0.5), (1, None), (None, 1.0)]),
    index=st.integers(0, 99),
)
def test_noise_for_the_support_alone_chooses_as_noise_for_all(
    logits: list[float], settings_: tuple[int | None, float | None], index: int
) -> None:
    """The short cut of the CPU against the whole vocabulary."""
    sampling = Sampling(0.8, *settings_)
    noise = NoiseStream(0, PROMPT)
    scaled = scaled_logits(torch.tensor([logits]), sampling)
    whole = (scaled + noise.gumbel([index], torch.arange(12))).argmax(-1).tolist()
    assert TokenChooser(sampling, noise).choose(torch.tensor([logits]), [index]) == whole


def test_greedy_ignores_top_k_top_p_and_seed() -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 30)
    best = logits.argmax(-1).tolist()
    for seed, sampling in enumerate((Sampling(0), Sampling(0, 5), Sampling(0, None, 0.1))):
        assert TokenChooser(sampling, NoiseStream(seed, PROMPT)).choose(logits, [0, 1, 2, 3]) == best


@pytest.mark.parametrize("damage", [math.nan, math.inf])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(1.0), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.5), Sampling(1.0, 2, 0.5)],
    ids=str,
)
def test_damaged_logits_are_an_error(damage: float, sampling: Sampling) -> None:
    """NaN and infinity mean damaged weights or an overflow: never a token drawn from the rest."""
    logits = torch.zeros(2, 6)
    logits[1, 3] = damage
    chooser = TokenChooser(sampling, NoiseStream(0, PROMPT))
    assert len(chooser.choose(logits[:1], [0])) == 1
    with pytest.raises(ValueError, match="logits for generated token 1 have no finite maximum") as caught:
        chooser.choose(logits, [0, 1])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, 2), Sampling(1.0, None, 0.5)])
def test_logits_that_forbid_every_token_are_an_error(sampling: Sampling) -> None:
    chooser = TokenChooser(sampling, NoiseStream(0, PROMPT))
    with pytest.raises(ValueError, match="no finite maximum"):
        chooser.choose(torch.full((1, 6), -math.inf), [0])


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1, must be a finite number >= 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0, must be >= 1"),
        ({"top_p": 0.0}, r"top_p is 0.0, must be in \(0, 1\]"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"top_p": True}, "top_p is True, must be a number"),
        ({"temperature": 10**400}, r"must be below 2\^63"),
        ({"top_k": 2.0}, "top_k is 2.0, must be a number"),
        ({"min_p": -0.1}, r"min_p is -0.1, must be in \[0, 1\]"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"min_p": math.nan}, "min_p is nan"),
        ({"min_p": "x"}, "min_p is 'x', must be a number"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, must be a finite number > 0"),
        ({"repetition_penalty": -1.2}, "repetition_penalty is -1.2"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
        ({"repetition_penalty": math.nan}, "repetition_penalty is nan"),
        ({"repetition_penalty": True}, "repetition_penalty is True, must be a number"),
        ({"processors": (5,)}, r"a logits processor is 5, must be callable with \(ids, scores\)"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Sampling(**settings_)
    assert "\n" not in str(caught.value)


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest() -> None:
    ladder = [math.log(share) for share in (0.5, 0.25, 0.2, 0.05)]
    assert support(ladder, min_p=0.51) == [0]
    assert support(ladder, min_p=0.49) == [0, 1]
    assert support(ladder, min_p=0.2) == [0, 1, 2]
    assert support(ladder, min_p=0.09) == [0, 1, 2, 3]
    assert support(ladder, min_p=0.0) == [0, 1, 2, 3]
    assert support([1.0, 3.0, 3.0, 2.0], min_p=1.0) == [1, 2], "the likeliest and those that tie with it"


def bias(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A caller's own: no token twice in a row, and low ids made likelier."""
    scores = scores.clone()
    scores[:, ids[0, -1]] = -math.inf
    return scores - 0.7182818 * torch.arange(scores.shape[1]).sqrt()


def flatten(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Does not commute with the other one."""
    return scores * 0.7654321


def reference_probs(logits: torch.Tensor, sampling: Sampling, context: list[int]) -> torch.Tensor:
    """transformers' classes in the order of its `generate`."""
    import transformers

    chain = transformers.LogitsProcessorList()
    if sampling.repetition_penalty is not None:
        chain.append(transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.extend(sampling.processors)
    chain.append(transformers.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k is not None:
        chain.append(transformers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        chain.append(transformers.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        chain.append(transformers.MinPLogitsWarper(sampling.min_p))
    scores: torch.Tensor = chain(torch.tensor([context]), logits[None].clone())
    return scores.softmax(-1)[0]


# Settings that no sum or quotient of the logits below meets: nothing stands on an edge, nothing ties.
SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    top_k=st.none() | st.integers(1, 14),
    top_p=st.none() | st.sampled_from([0.0123457, 0.2345678, 0.6543211, 0.9123457, 1.0]),
    min_p=st.none() | st.sampled_from([0.0, 0.0123457, 0.1234567, 0.6543211]),
    repetition_penalty=st.none() | st.sampled_from([0.7654321, 1.0, 1.2345678, 2.3456789]),
    processors=st.sampled_from([(), (bias,), (bias, flatten), (flatten, bias)]),
)


@given(
    logits=st.lists(st.integers(-300, 300), min_size=12, max_size=12, unique=True),
    sampling=SETTINGS,
    context=st.lists(st.integers(0, 11), min_size=1, max_size=6),
)
@settings(max_examples=200)
def test_distribution_is_that_of_transformers_processors(
    logits: list[int], sampling: Sampling, context: list[int]
) -> None:
    """Same support, same probabilities."""
    row = torch.tensor(logits, dtype=torch.float64) / 99
    before = row.clone()
    ours = token_probs(row, sampling, context)
    theirs = reference_probs(row, sampling, context)
    assert ours is not None
    assert ours.dtype == torch.float64
    assert torch.equal(ours > 0, theirs > 0)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert torch.equal(row, before), "the logits were written to"


@given(
    logits=st.lists(st.integers(-300, 300), min_size=12, max_size=12, unique=True),
    sampling=SETTINGS,
    context=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    index=st.integers(0, 9),
)
def test_choice_is_the_argmax_of_that_distribution_under_the_noise(
    logits: list[int], sampling: Sampling, context: list[int], index: int
) -> None:
    row = torch.tensor(logits, dtype=torch.float64) / 99
    perturbed = [
        math.log(share) - math.log(-math.log(reference_uniform(3, PROMPT, index, token)))
        if share > 0
        else -math.inf
        for token, share in enumerate(reference_probs(row, sampling, context).tolist())
    ]
    chosen = TokenChooser(sampling, NoiseStream(3, PROMPT)).choose(row[None], [index], [context])
    assert chosen == [perturbed.index(max(perturbed))]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"top_k": 9},
        {"min_p": 0.1234567},
        {"repetition_penalty": 1.2345678},
        {"temperature": 0.7, "top_k": 15, "top_p": 0.9123457, "min_p": 0.0123457},
        {
            "temperature": 1.4,
            "top_p": 0.8123457,
            "repetition_penalty": 1.5432101,
            "processors": (bias, flatten),
        },
        {"temperature": 0.5, "top_k": 11, "min_p": 0.0543211, "processors": (bias,)},
    ],
    ids=str,
)
def test_distribution_is_that_of_transformers_generate(changed: dict[str, Any]) -> None:
    """`generate` itself says in which order its processors act, and hands out what it draws from."""
    sampling = Sampling(**{"temperature": 1.0, **changed})
    ids = torch.tensor([[5, 9, 4, 9, 5]])
    made = tiny_target(layers=2).model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=sampling.temperature,
        top_k=sampling.top_k or 0,
        top_p=sampling.top_p or 1.0,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        logits_processor=list(sampling.processors),
        max_new_tokens=6,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
    text = made.sequences[0].tolist()
    narrowed = 0
    for place, (logits, scores) in enumerate(zip(made.logits, made.scores, strict=True)):
        ours = token_probs(logits[0], sampling, text[: 5 + place])
        assert ours is not None
        theirs = scores[0].to(torch.float64).softmax(-1)
        assert torch.equal(ours > 0, theirs > 0)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)  # `generate` computes in float32
        narrowed += int((ours == 0).sum())
    assert narrowed > 0 or not (sampling.narrows or sampling.processors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_processors_see_half_precision_logits_widened(dtype: torch.dtype) -> None:
    """And the law is that of the same numbers in float32."""
    torch.manual_seed(2)
    half = torch.randn(30).to(dtype)
    seen: list[torch.dtype] = []

    def look(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores.dtype)
        return scores + 0.1234567 * ids[0, -1]

    for temperature in (0.0, 0.7):
        sampling = Sampling(temperature, min_p=0.01, repetition_penalty=1.2345678, processors=(look, bias))
        ours = token_probs(half, sampling, [4, 7, 4])
        assert ours is not None
        wide = token_probs(half.to(torch.float32), sampling, [4, 7, 4])
        assert torch.equal(ours, torch.as_tensor(wide))
        chooser = TokenChooser(sampling, NoiseStream(0, PROMPT))
        chosen = chooser.choose(half[None], [3], [[4, 7, 4]])
        assert chosen == chooser.choose(half[None].to(torch.float32), [3], [[4, 7, 4]])
    assert set(seen) == {torch.float32}
