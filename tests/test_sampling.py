"""Top-k, top-p and the choice of a token against a plain reference; ties, damaged logits, bad settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.noise import NoiseStream
from decoding.sampling import Sampling, TokenChooser, scaled_logits
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
    ],
)
def test_bad_settings_are_refused_in_one_line(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Sampling(**settings_)
    assert "\n" not in str(caught.value)
