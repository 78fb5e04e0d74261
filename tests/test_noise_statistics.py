"""The noise against scipy: uniform, independent along every axis of its key, Gumbel, coupled as theory says.

Every seed is fixed, so a verdict never changes from run to run. The level is Bonferroni's: ALPHA for the
module, shared among at most FAMILY p-values. Generators with known faults go through the same battery and
must be caught, each where its fault is and nowhere else.

Legend: A steps along the axis under test, M independent copies, P positions, N token ids, D draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from scipy import special, stats

from decoding.noise import NoiseStream

ALPHA = 1e-3
FAMILY = 128  # the battery has 80, the laws at the end 28

PROMPT = [11, 0, 49151, 7]
LONG_PROMPT = np.random.default_rng(0).integers(0, 49152, 500).tolist()

# (seed, prompt, indices P, token ids N) -> uniforms, float64 (P, N)
Generator = Callable[[int, Sequence[int], Sequence[int], np.ndarray], np.ndarray]


def our_noise(seed: int, prompt: Sequence[int], indices: Sequence[int], ids_N: np.ndarray) -> np.ndarray:
    return NoiseStream(seed, prompt).uniforms(indices, torch.from_numpy(ids_N)).numpy()


def rejected(p_values: dict[str, float]) -> set[str]:
    """Names of the tests that fail at the shared level; a p-value that is NaN has failed."""
    return {name for name, p_value in p_values.items() if not p_value >= ALPHA / FAMILY}


# The battery: what neighbours along an axis of the key must not show


def axes(draw: Generator) -> dict[str, np.ndarray]:
    """Uniforms (A, M) of neighbours along each axis; M runs over token ids, along "tokens" over positions."""
    ids_M, steps = np.arange(256), range(480)
    return {
        "tokens": draw(1, PROMPT, range(50), np.arange(2400)).T,
        "positions": draw(2, PROMPT, steps, ids_M),
        "seeds": np.concatenate([draw(seed, PROMPT, [0], ids_M) for seed in steps]),
        "prompts by a token": np.concatenate([draw(3, [5, 17, token, 9], [0], ids_M) for token in steps]),
        "prompts trimmed": np.concatenate([draw(4, LONG_PROMPT[start:], [0], ids_M) for start in steps]),
        # The first token gone and one more generated: the place in the conversation is the same.
        "prompts trimmed, same place": np.concatenate(
            [draw(5, LONG_PROMPT[start:], [start], ids_M) for start in steps]
        ),
    }


def battery(draw: Generator) -> dict[str, float]:
    """p-values by "axis: test"."""
    p_values = {}
    for axis, uniforms_AM in axes(draw).items():
        for test, p_value in axis_tests(uniforms_AM).items():
            p_values[f"{axis}: {test}"] = p_value
    return p_values | avalanche(draw)


def axis_tests(x_AM: np.ndarray) -> dict[str, float]:
    """p-values of uniformity and independence; tuples do not overlap, so that their cells are multinomial."""
    bits_AM = (x_AM * 2**53).astype(np.int64)
    even, odd = slice(0, None, 2), slice(1, None, 2)  # every axis has a multiple of 6 steps
    low_AM = (bits_AM & 15) / 16
    return {
        "Kolmogorov-Smirnov": float(stats.kstest(x_AM.ravel(), "uniform", method="asymp").pvalue),
        "pairs": cells(16, x_AM[even], x_AM[odd]),
        "pairs of low bits": cells(16, low_AM[even], low_AM[odd]),
        "triples": cells(8, *(x_AM[start::3] for start in range(3))),
        "pairs across, up": cells(16, x_AM[even, :-1], x_AM[odd, 1:]),
        "pairs across, down": cells(16, x_AM[even, 1:], x_AM[odd, :-1]),
        "correlation": correlation(x_AM[:-1], x_AM[1:]),
        "correlation at lag 2": correlation(x_AM[:-2], x_AM[2:]),
        "runs about the median": runs_about_the_median(x_AM),
        "runs up and down": runs_up_and_down(x_AM),
        "high bits": bit_balance(bits_AM, range(27, 53)),
        "low bits": bit_balance(bits_AM, range(27)),
    }


def cells(per_side: int, *coordinates: np.ndarray) -> float:
    """Chi-square over the cells of a square or a cube."""
    index = np.zeros(coordinates[0].shape, dtype=np.int64)
    for coordinate in coordinates:
        index = index * per_side + (coordinate * per_side).astype(np.int64)
    counts = np.bincount(index.ravel(), minlength=per_side ** len(coordinates))
    return float(stats.chisquare(counts).pvalue)


def two_sided(z: float) -> float:
    return float(2 * stats.norm.sf(abs(z)))


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Of uniforms, with the mean 1/2 and the variance 1/12 known: the products sum to about a normal."""
    products = (x - 0.5) * (y - 0.5) * 12
    return two_sided(products.sum() / np.sqrt(products.size))


def runs_about_the_median(x_AM: np.ndarray) -> float:
    """Wald-Wolfowitz with the median known: each step starts a new run with probability 1/2."""
    above_AM = x_AM > 0.5
    starts = above_AM[1:] != above_AM[:-1]
    return float(stats.binomtest(int(starts.sum()), starts.size).pvalue)


def runs_up_and_down(x_AM: np.ndarray) -> float:
    """Runs of rises and falls in A numbers: mean (2A - 1) / 3, variance (16A - 29) / 90."""
    steps, copies = x_AM.shape
    rises = np.diff(x_AM, axis=0) > 0
    runs = copies + int((rises[1:] != rises[:-1]).sum())
    mean, variance = (2 * steps - 1) / 3, (16 * steps - 29) / 90
    return two_sided((runs - copies * mean) / np.sqrt(copies * variance))


def bit_balance(bits: np.ndarray, places: Sequence[int]) -> float:
    """Ones in each binary place: squared z-scores sum to a chi-square."""
    z = [(((bits >> place) & 1).sum() - bits.size / 2) / np.sqrt(bits.size / 4) for place in places]
    return float(stats.chi2.sf(np.square(z).sum(), len(z)))


def avalanche(draw: Generator) -> dict[str, float]:
    """A bit of a part of the key flipped: each of the 53 bits must flip in half of the draws."""
    rng = np.random.default_rng(1)
    ids_N = rng.integers(0, 2**17, 250)

    def seed(flip: int) -> np.ndarray:
        return np.concatenate(
            [draw((7 << 61 | 12345 * base) ^ flip, PROMPT, [3], ids_N) for base in range(4)]
        )

    def prompt(flip: int) -> np.ndarray:
        return np.concatenate([draw(0, [5, base, 40000 ^ flip, 9], [3], ids_N) for base in range(4)])

    parts: dict[str, tuple[Callable[[int], np.ndarray], int]] = {
        "seed": (seed, 64),
        "prompt token": (prompt, 17),
        "index": (lambda flip: draw(0, PROMPT, [base ^ flip for base in (0, 77, 1023, 400_000)], ids_N), 20),
        "token id": (lambda flip: draw(0, PROMPT, range(4), ids_N ^ flip), 17),
    }
    p_values = {}
    for part, (draw_flipped, width) in parts.items():
        plain = (draw_flipped(0) * 2**53).astype(np.int64)
        changed = [plain ^ (draw_flipped(1 << bit) * 2**53).astype(np.int64) for bit in range(width)]
        ones = np.array([[((bits >> place) & 1).sum() for place in range(53)] for bits in changed])
        z = (ones - plain.size / 2) / np.sqrt(plain.size / 4)
        p_values[f"flips of the {part}: by bit"] = float(stats.chi2.sf(np.square(z).sum(), z.size))
        p_values[f"flips of the {part}: average"] = two_sided(z.sum() / np.sqrt(z.size))
    return p_values


# Generators with a fault

GOLDEN = 0x9E3779B97F4A7C15


def hashed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little")


def split_mix(state_PN: np.ndarray) -> np.ndarray:
    state_PN = (state_PN ^ (state_PN >> 30)) * 0xBF58476D1CE4E5B9
    state_PN = (state_PN ^ (state_PN >> 27)) * 0x94D049BB133111EB
    return state_PN ^ (state_PN >> 31)


def lcg(state_PN: np.ndarray) -> np.ndarray:
    """One step of Knuth's MMIX generator."""
    return state_PN * 6364136223846793005 + 1442695040888963407


def keyed(
    key: Callable[[int, Sequence[int], int], int] = lambda seed, prompt, index: hashed(seed, *prompt, index),
    mix: Callable[[np.ndarray], np.ndarray] = split_mix,
    drop: int = 0,
) -> Generator:
    """Our construction with another key, another mixer or the `drop` lowest bits 0."""

    def draw(seed: int, prompt: Sequence[int], indices: Sequence[int], ids_N: np.ndarray) -> np.ndarray:
        keys_P = np.array([key(seed, prompt, index) % 2**64 for index in indices], dtype=np.uint64)
        state_PN = keys_P[:, None] + (ids_N.astype(np.uint64) + 1) * GOLDEN
        return (mix(state_PN) >> (11 + drop)) * 2.0 ** (drop - 53)

    return draw


def bent(seed: int, prompt: Sequence[int], indices: Sequence[int], ids_N: np.ndarray) -> np.ndarray:
    return our_noise(seed, prompt, indices, ids_N) ** 1.03


ALL_AXES = {"tokens", "positions", "seeds", "prompts by a token"}
ALL_AXES |= {"prompts trimmed", "prompts trimmed, same place"}
ALL_FLIPS = {f"flips of the {part}" for part in ("seed", "prompt token", "index", "token id")}

# Each generator, and where the battery must see its fault. The copies along one axis are neighbours along
# another: a fault among tokens shows on every axis.
FAULTS: dict[str, tuple[Generator, set[str]]] = {
    "an LCG keyed by addition": (keyed(mix=lcg), ALL_AXES | ALL_FLIPS),
    "SplitMix without its finaliser": (keyed(mix=lambda state_PN: state_PN), ALL_AXES | ALL_FLIPS),
    "keyed by seed and place: a trimmed conversation meets its own noise": (
        keyed(lambda seed, prompt, index: hashed(seed, len(prompt) + index)),
        {"prompts by a token", "prompts trimmed, same place", "flips of the prompt token"},
    ),
    "keyed by seed and index": (
        keyed(lambda seed, prompt, index: hashed(seed, index)),
        {"prompts by a token", "prompts trimmed", "flips of the prompt token"},
    ),
    "the next seed's token is this seed's next token": (
        keyed(lambda seed, prompt, index: hashed(*prompt, index) + seed * GOLDEN),
        {"seeds"},
    ),
    "the next position's token is this position's token after next": (
        keyed(lambda seed, prompt, index: hashed(seed, *prompt) + 2 * index * GOLDEN),
        {"positions", "tokens"},
    ),
    "uniforms of 24 bits": (keyed(drop=29), ALL_AXES | ALL_FLIPS),
    "slightly bent": (bent, ALL_AXES),
}


def test_the_noise_is_uniform_and_independent_along_every_axis_of_its_key() -> None:
    p_values = battery(our_noise)
    assert len(p_values) == 80
    assert rejected(p_values) == set()


def test_the_battery_sees_every_fault_where_it_is_and_nowhere_else() -> None:
    seen: set[str] = set()
    for fault, (generator, expected) in FAULTS.items():
        caught = rejected(battery(generator))
        assert {name.split(": ")[0] for name in caught} == expected, fault
        seen |= {name.split(": ")[1] for name in caught}
    every_test = {name.split(": ")[1] for name in battery(our_noise)}
    assert seen == every_test  # none in it that cannot fail


# The laws that the noise gives to tokens

DRAWS = 60_000


def gumbel_DN(seed: int, ids: int) -> np.ndarray:
    """Our Gumbel values (D, N), each draw at a position of its own."""
    return NoiseStream(seed, PROMPT).gumbel(range(DRAWS), torch.arange(ids)).numpy()


def winners_D(law: np.ndarray, noise_DN: np.ndarray) -> np.ndarray:
    """The token that wins each draw under the law."""
    log_law = np.log(law, where=law > 0, out=np.full(len(law), -np.inf))
    return (log_law + noise_DN[:, : len(law)]).argmax(axis=1)


def law_p_value(winners: np.ndarray, law: np.ndarray) -> float:
    """Chi-square of how often each token won; 0 where an impossible one did."""
    counts = np.bincount(winners, minlength=len(law))
    possible = law > 0
    if counts[~possible].any():
        return 0.0
    return float(stats.chisquare(counts[possible], law[possible] * len(winners)).pvalue)


def laws() -> dict[str, np.ndarray]:
    """Softmax laws; the least likely token is expected 15 times."""
    logits = np.random.default_rng(2).normal(size=48)
    return {
        "even": special.softmax(np.zeros(64)),
        "geometric": special.softmax(-np.log(2) * np.arange(12)),
        "Zipf": special.softmax(-np.log(np.arange(1, 65))),
        "temperature 0.7": special.softmax(logits / 0.7),
        "impossible tokens": np.array([0.5, 0.0, 0.3, 0.0, 0.2]),
    }


def test_a_million_uniforms_are_uniform() -> None:
    uniforms = NoiseStream(8, PROMPT).uniforms(range(21), torch.arange(49_152)).numpy().ravel()
    counts = np.bincount((uniforms * 4096).astype(np.int64), minlength=4096)
    p_values = {
        "Kolmogorov-Smirnov": float(stats.kstest(uniforms, "uniform", method="asymp").pvalue),
        "chi-square": float(stats.chisquare(counts).pvalue),
    }
    assert rejected(p_values) == set()


def test_gumbel_values_follow_the_gumbel_law() -> None:
    values = NoiseStream(9, PROMPT).gumbel(range(6), torch.arange(49_152)).numpy().ravel()

    def p_value(sample: np.ndarray) -> float:
        return float(stats.kstest(sample, stats.gumbel_r.cdf, method="asymp").pvalue)

    assert rejected({"ours": p_value(values)}) == set()
    # a sign forgotten, one logarithm only, a scale or a place slightly off
    wrong = {"sign": -values, "logarithm": np.exp(-values), "scale": values * 1.02, "place": values + 0.02}
    wrong_p_values = {fault: p_value(sample) for fault, sample in wrong.items()}
    assert rejected(wrong_p_values) == set(wrong)


def test_gumbel_argmax_draws_from_softmax() -> None:
    noise_DN = gumbel_DN(10, 64)
    p_values = {name: law_p_value(winners_D(law, noise_DN), law) for name, law in laws().items()}
    assert rejected(p_values) == set()
    # Noise a tenth too small must be seen, but for the even law: no scale moves its argmax.
    weakened = {name: law_p_value(winners_D(law, noise_DN * 0.9), law) for name, law in laws().items()}
    assert rejected(weakened) == set(laws()) - {"even"}


@pytest.mark.parametrize("share", [1e-2, 1e-3, 1e-4, 1e-5])
def test_rare_tokens_win_as_often_as_they_should(share: float) -> None:
    """A million worlds of two tokens, neighbours in the vocabulary."""
    noise = NoiseStream(11, PROMPT).gumbel(range(41), torch.arange(49_152)).numpy().reshape(-1, 2)
    wins = int((np.log(share) + noise[:, 1] > np.log1p(-share) + noise[:, 0]).sum())
    assert rejected({"wins": float(stats.binomtest(wins, len(noise), share).pvalue)}) == set()


WORLDS = [
    ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]),
    ([0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]),
    ([0.5, 0.25, 0.15, 0.09, 0.01], [0.02, 0.5, 0.08, 0.3, 0.1]),
]


def agreement(p: np.ndarray, q: np.ndarray, noise_p: np.ndarray, noise_q: np.ndarray) -> dict[str, float]:
    """p-values, by token and for all of them at once, of: a token wins under both laws."""
    under_p, under_q = winners_D(p, noise_p), winners_D(q, noise_q)
    counts = np.bincount(under_p[under_p == under_q], minlength=len(p)).tolist()
    shares = [1 / np.maximum(p / p[token], q / q[token]).sum() for token in range(len(p))]
    observed = np.array([*counts, DRAWS - sum(counts)])
    expected = np.array([*shares, 1 - sum(shares)]) * DRAWS
    p_values = {"all": float(stats.chisquare(observed, expected).pvalue)}
    for token in range(len(p)):
        won, wished = ([n[token], DRAWS - n[token]] for n in (observed, expected))
        p_values[f"token {token}"] = float(stats.chisquare(won, wished).pvalue)
    return p_values


@pytest.mark.parametrize("number", range(len(WORLDS)))
def test_two_laws_under_one_noise_agree_as_theory_says(number: int) -> None:
    """P(v wins under both) = 1 / sum_w max(p_w / p_v, q_w / q_v): each token's share and all together."""
    p, q = (np.array(law) for law in WORLDS[number])
    noise_DN, other_DN = gumbel_DN(20 + number, len(p)), gumbel_DN(30 + number, len(p))
    assert rejected(agreement(p, q, noise_DN, noise_DN)) == set()
    assert "all" in rejected(agreement(p, q, noise_DN, other_DN))  # two noises agree less often
