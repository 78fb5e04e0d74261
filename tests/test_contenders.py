"""Noise for the few tokens that can win chooses what noise for all would, whatever the logits."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import native
from decoding.noise import NoiseStream
from decoding.sampling import Sampling, TokenChooser
from tests.test_noise import unmixed

PROMPT = [11, 0, 49151, 7]
GOLDEN = 0x9E3779B97F4A7C15
TEMPERATURES = (1e-300, 0.01, 0.3, 1.0, 1.9, 1e300)

native.library()  # where it is not loaded there is nothing to compare


class ForAll(NoiseStream):
    """The same noise without the short cut, which is not for subclasses: they may draw otherwise."""


def chosen(
    noise: NoiseStream, logits_RV: torch.Tensor, temperature: float, first: int = 0
) -> list[int] | str:
    """The tokens of rows at `first` and the positions after it, or the error."""
    indices = range(first, first + len(logits_RV))
    try:
        return TokenChooser(Sampling(temperature), noise).choose(logits_RV, indices)
    except ValueError as error:
        return str(error)


def assert_same_choice(logits_RV: torch.Tensor, temperature: float, first: int = 0) -> list[int] | str:
    before = logits_RV.clone()
    few = chosen(NoiseStream(5, PROMPT), logits_RV, temperature, first)
    assert few == chosen(ForAll(5, PROMPT), logits_RV, temperature, first)
    torch.testing.assert_close(logits_RV, before, rtol=0, atol=0, equal_nan=True)
    return few


def lucky(token: int, bits: int = 2**64 - 1) -> int:
    """The key under which this token's noise has these bits; the default is the greatest uniform."""
    key = (unmixed(bits) - (token + 1) * GOLDEN) % 2**64
    return key - 2**64 if key >= 2**63 else key


LENGTHS = st.integers(1, 8) | st.integers(1, 200)  # blocks of native.c are of 32
SOME = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 3.0])
ANY = st.floats(width=32) | st.sampled_from([math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-45, -0.0])


@given(
    logits=LENGTHS.flatmap(
        lambda n: (
            st.lists(st.floats(-20, 20, width=32), min_size=n, max_size=n)  # as a model's
            | st.lists(SOME, min_size=n, max_size=n)  # masked, and equal in groups
            | st.lists(ANY, min_size=n, max_size=n)
            | st.just([2.0] * n)
            | st.just([-math.inf] * n)
        )
    ),
    temperature=st.sampled_from(TEMPERATURES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    index=st.integers(0, 2**40),
)
@settings(max_examples=600)
def test_any_logits_choose_as_with_noise_for_all(
    logits: list[float], temperature: float, dtype: torch.dtype, index: int
) -> None:
    """Or fail with the same words."""
    assert_same_choice(torch.tensor([logits]).to(dtype), temperature, index)


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("trend", [0.0, 1e-3, -1e-3])
@pytest.mark.parametrize("offset", [0.0, 2.0**23])
def test_many_close_races_end_the_same(spread: float, trend: float, offset: float) -> None:
    """A bound that is a little too low would lose some of these; scaled logits are no float32 numbers."""
    torch.manual_seed(0)
    logits = torch.randn(100, 2000) * spread + torch.arange(2000) * trend
    assert_same_choice(logits + offset, 1.1)


@pytest.mark.parametrize("place", [0, 31, 32, 40, 149])
@pytest.mark.parametrize("damage", [math.nan, math.inf])
def test_damage_is_found_where_no_token_can_win(damage: float, place: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 150)
    logits[0, 1] = 99.0
    logits[0, place] = damage
    assert "no finite maximum" in str(assert_same_choice(logits, 1.0))


def test_a_large_vocabulary_leaves_a_dozen() -> None:
    """Whether the short cut is one; a large bound would be no fault otherwise."""
    torch.manual_seed(0)
    logits = torch.stack([torch.randn(49_152) * 3, torch.zeros(49_152), torch.randn(49_152) * 0.3])
    assert NoiseStream(5, PROMPT).winners(range(3), logits, 1.0) is not None
    assert_same_choice(logits, 1.0)


def test_any_team_chooses_the_same() -> None:
    """Each thread races its own part; what each found is raced once more."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    try:
        for size in (1, 31, 33, 64, 700):
            logits = torch.randn(200, size) * 2
            for threads in (1, 2, 3, 5):
                torch.set_num_threads(threads)
                assert_same_choice(logits, 0.9)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rising", [True, False])
def test_where_every_token_may_win_all_are_asked(rising: bool) -> None:
    """Each beats the one before it: more than there is room for."""
    logits = torch.arange(4000.0)[None] * (1 if rising else -1)
    found = NoiseStream(5, PROMPT).winners([0], logits, 0.01)
    assert (found is None) == rising
    assert_same_choice(logits, 0.01)


@pytest.mark.parametrize("token", [0, 1, 31, 32, 33, 63, 64, 69])
@pytest.mark.parametrize("ahead", [36.0, 37.5])
def test_the_greatest_noise_is_foreseen(token: int, ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """53 log 2 = 36.7: wins against 36, not against 37.5 and the least noise of some token."""
    monkeypatch.setattr(NoiseStream, "key", lambda self, index: lucky(token))
    logits = torch.full((1, 70), -50.0)
    rival = 40 if token < 40 else 20
    uniform = NoiseStream(0, PROMPT).uniforms([0], torch.tensor([rival])).item()
    logits[0, token] = 0.0
    logits[0, rival] = ahead + math.log(-math.log(uniform))
    assert assert_same_choice(logits, 1.0) == [token if ahead < 36.5 else rival]


@pytest.mark.parametrize("bits", [0, 2**11 - 1, 2**11, 2**40 - 1, 2**40, 2**63, 2**64 - 2**40, 2**64 - 2**11])
def test_noise_at_the_edges_of_the_bound_is_foreseen(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that beats the one before it by a hair's breadth."""
    monkeypatch.setattr(NoiseStream, "key", lambda self, index: lucky(1, bits))
    noise_2 = NoiseStream(0, PROMPT).gumbel([0], torch.arange(2))[0]
    logits = torch.tensor([[float(noise_2[1] - noise_2[0]), 0.0]])
    for nudge in (-1e-5, 1e-5):
        assert assert_same_choice(logits + torch.tensor([nudge, 0.0]), 1.0) == [0 if nudge > 0 else 1]


@given(
    ids=st.sets(st.integers(0, 149), min_size=2, max_size=9),
    exponent=st.integers(60, 100),
    temperature=st.sampled_from([0.3, 1.0, 1.9]),
    index=st.integers(0, 99),
)
def test_ties_go_to_the_lowest_id(ids: set[int], exponent: int, temperature: float, index: int) -> None:
    """Logits so large that their noise is rounded away."""
    logits = torch.zeros(1, 150)
    logits[0, list(ids)] = 2.0**exponent
    assert assert_same_choice(logits, temperature, index) == [min(ids)]


def test_rows_that_lie_apart_are_read_where_they_are() -> None:
    """Columns cut from padded rows, a transposed tensor, one row for all."""
    torch.manual_seed(0)
    padded = torch.randn(4, 80)
    padded[:, 70:] = 99.0
    for logits in (padded[:, :70], padded[:, :70].t().contiguous().t(), padded[:1, :70].expand(4, -1)):
        apart = chosen(NoiseStream(5, PROMPT), logits, 1.0)
        assert apart == assert_same_choice(logits.clone(), 1.0)


def test_without_native_code_the_choice_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits = torch.randn(20, 3000) * 2
    few = chosen(NoiseStream(5, PROMPT), logits, 0.8)
    monkeypatch.setattr(native, "loaded", lambda: None)
    assert NoiseStream(5, PROMPT).winners([0], logits[:1], 1.0) is None
    assert chosen(NoiseStream(5, PROMPT), logits, 0.8) == few


def found(logits_V: torch.Tensor, temperature: float, room: int, threads: int) -> list[int] | None:
    """The ids that native code leaves, None where there is too little room; nothing is written past it."""
    places, key = room * threads, NoiseStream(5, PROMPT).key(0)
    ids, scaled, drawn = (array(kind, [77] * (places + 1)) for kind in "qdd")
    into = (part.buffer_info()[0] for part in (ids, scaled, drawn))
    kept = native.library().contenders(
        logits_V.data_ptr(), len(logits_V), temperature, key, room, *into, threads
    )
    assert ids[-1] == scaled[-1] == drawn[-1] == 77
    return None if kept < 0 else ids[:kept].tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_room_is_used_to_its_last_place_and_no_further(threads: int) -> None:
    """Of tokens that each beat the one before, all need a place until the best is known."""
    rising, most = torch.arange(64.0), 64 // threads
    assert found(rising, 0.01, most, threads) == [63]
    assert found(rising, 0.01, most - 1, threads) is None
    falling_first = torch.cat([-torch.arange(32.0), rising[:32]])
    assert found(falling_first, 0.01, 31, threads) is None


@pytest.mark.parametrize("ahead", [-1e-6, -1e-11, 1e-11, 1e-6])
def test_only_a_race_within_rounding_is_left_open(ahead: float) -> None:
    """Other logarithms than native code's could end it otherwise."""
    noise_2 = NoiseStream(5, PROMPT).gumbel([0], torch.arange(2))[0]
    gap = float(noise_2[1] - noise_2[0])
    first = torch.tensor(gap)  # float32; what it lacks of the gap is a second logit, exact to 1e-14
    logits = torch.stack([first, torch.tensor(float(first) - gap - ahead)])
    close = abs(ahead) < 1e-9
    assert found(logits, 1.0, 8, 1) == ([0, 1] if close else [0] if ahead > 0 else [1])
    assert assert_same_choice(logits[None], 1.0) == [0 if ahead > 0 else 1]


def test_other_noise_is_asked_itself() -> None:
    """A subclass may draw otherwise: the bound, and native code's noise, are not its own."""

    class Favourite(NoiseStream):
        def gumbel(self, indices: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
            return (ids_N == 17).double()[None] * 50

    assert chosen(Favourite(5, PROMPT), torch.zeros(1, 40), 1.0) == [17]
