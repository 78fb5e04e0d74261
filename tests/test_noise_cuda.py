"""The same bits from every backend: CUDA against the CPU and, without CUDA, both code paths on the CPU.

Legend: P positions, N token ids, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from decoding.noise import NoiseStream, cpu_uniforms, device_uniforms, native_uniforms
from tests.test_noise import unmixed

PROMPT = [11, 0, 49151, 7]
VOCABULARY = 49_152
SEEDS = [0, 7, -1, 2**63 - 1, 2**64 - 1]

# All 64 bits of the mixer's output, and the uniform that they give.
EXTREMES = [(0, 2.0**-54), (2**11 - 1, 2.0**-54), (2**11, 2.0**-53), (2**64 - 1, 1 - 2.0**-53)]

Uniforms = Callable[[Sequence[int], torch.Tensor], torch.Tensor]

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
every_path = pytest.mark.parametrize("uniforms", [cpu_uniforms, device_uniforms, native_uniforms])


def keys_of(seed: int, indices: Sequence[int]) -> list[int]:
    return [NoiseStream(seed, PROMPT).key(index) for index in indices]


def independent(keys: Sequence[int], ids_N: np.ndarray) -> np.ndarray:
    """SplitMix64's output (P, N), its upper 53 bits as a fraction; no operation in place."""
    state = np.array([key % 2**64 for key in keys], dtype=np.uint64).reshape(-1, 1)
    z = state + np.uint64(0x9E3779B97F4A7C15) * (ids_N.astype(np.uint64) + np.uint64(1))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.ldexp((z // np.uint64(2**11)).astype(np.float64), -53)


def assert_few_ulps_apart(one: torch.Tensor, other: torch.Tensor) -> None:
    """4 units in the last place; near 0, where the outer logarithm's argument is near 1, of 1."""
    tolerance = 4 * 2.0**-52 * torch.maximum(one.abs(), torch.ones_like(one))
    assert ((one - other).abs() <= tolerance).all()


# On CUDA


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize("seed", SEEDS)
def test_cuda_draws_the_cpu_uniforms(seed: int) -> None:
    """Whole vocabularies, then random subsets in random order, by several positions at once."""
    noise, indices = NoiseStream(seed, PROMPT), [0, 1, 5, 2**40]
    rng = np.random.default_rng(0)
    everything = np.arange(200_000)
    subsets = [rng.choice(everything, size, replace=False) for size in (1, 50, 6144)]
    for ids in (everything, *subsets):
        ids_N = torch.from_numpy(ids)
        on_device = noise.uniforms(indices, ids_N.cuda())
        assert on_device.device.type == "cuda"
        assert torch.equal(on_device.cpu(), noise.uniforms(indices, ids_N))


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize("seed", SEEDS)
def test_cuda_draws_the_cpu_gumbel_values_within_ulps(seed: int) -> None:
    noise, ids_V = NoiseStream(seed, PROMPT), torch.arange(VOCABULARY)
    on_cpu, on_device = noise.gumbel(range(8), ids_V), noise.gumbel(range(8), ids_V.cuda()).cpu()
    assert on_device.isfinite().all()
    assert_few_ulps_apart(on_cpu, on_device)


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize(("bits", "expected"), EXTREMES)
def test_extremes_are_the_same_on_cuda(bits: int, expected: float) -> None:
    before_the_first = torch.tensor([-1], device="cuda")  # adds nothing to the key
    assert device_uniforms([unmixed(bits)], before_the_first).item() == expected


# What stands in for another backend: every code path, cut, strided and threaded in other ways


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """torch.set_num_threads, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_path
@pytest.mark.parametrize(("bits", "expected"), EXTREMES)
def test_uniforms_lie_strictly_inside_0_and_1(uniforms: Uniforms, bits: int, expected: float) -> None:
    """At the states that mix to all zeros and to all ones too."""
    before_the_first = torch.tensor([-1])
    assert uniforms([unmixed(bits)], before_the_first).item() == expected


@every_path
def test_a_million_uniforms_are_those_of_an_independent_implementation(uniforms: Uniforms) -> None:
    keys = [key for seed in SEEDS for key in keys_of(seed, [0, 1, 2, 3, 1000])]
    ids = np.concatenate([np.arange(VOCABULARY), 2 ** np.arange(63), [2**63 - 2]])
    drawn = uniforms(keys, torch.from_numpy(ids))
    assert drawn.dtype == torch.float64
    assert drawn.numel() > 1_000_000
    assert np.array_equal(drawn.numpy(), independent(keys, ids))


@every_path
def test_chunks_have_the_same_bits(uniforms: Uniforms) -> None:
    keys, ids_V = keys_of(1, range(5)), torch.arange(VOCABULARY)
    whole = uniforms(keys, ids_V)
    for size in (1000, 4096, 32_768):
        assert torch.equal(torch.cat([uniforms(keys, part) for part in ids_V.split(size)], dim=1), whole)
    assert torch.equal(torch.cat([uniforms([key], ids_V) for key in keys]), whole)


@every_path
def test_any_number_of_threads_draws_the_same_bits(
    uniforms: Uniforms, threads: Callable[[int], None]
) -> None:
    keys, ids_V = keys_of(2, range(3)), torch.arange(VOCABULARY)  # long enough for torch to use both
    threads(1)
    alone = uniforms(keys, ids_V)
    threads(2)
    assert torch.equal(uniforms(keys, ids_V), alone)


@every_path
def test_strided_ids_draw_the_same_bits_and_stay_as_they_were(uniforms: Uniforms) -> None:
    keys, ids_V = keys_of(3, range(3)), torch.arange(2400)
    whole = uniforms(keys, ids_V)
    column = ids_V.reshape(40, 60)[:, 7]
    assert not column.is_contiguous()
    same = torch.tensor([5]).expand(9)  # a stride of 0
    for ids_N in (ids_V[::3], ids_V[5:1000:7], column, ids_V.flip(0), same, ids_V[:0]):
        before = ids_N.clone()
        assert torch.equal(uniforms(keys, ids_N), whole[:, before])
        assert torch.equal(ids_N, before)
    assert uniforms([], ids_V).shape == (0, 2400)


@every_path
def test_every_call_returns_memory_of_its_own(uniforms: Uniforms) -> None:
    """The logarithms are taken in place: a kept tensor must not change under them."""
    keys, ids_V = keys_of(4, [0]), torch.arange(100)
    first = uniforms(keys, ids_V)
    kept = first.clone()
    uniforms(keys, ids_V).log_()
    assert torch.equal(first, kept)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float64, torch.bool])
def test_ids_of_another_type_are_refused(dtype: torch.dtype) -> None:
    ids_N = torch.tensor([1, 0]).to(dtype)
    with pytest.raises(TypeError, match=r"token ids are torch\.\w+, must be torch\.int64"):
        NoiseStream(0, PROMPT).gumbel([0], ids_N)


def test_gumbel_values_of_subsets_differ_by_ulps_at_most() -> None:
    """Vectorised logarithms may round otherwise at the end of a row."""
    noise, ids_V = NoiseStream(5, PROMPT), torch.arange(VOCABULARY)
    whole = noise.gumbel(range(3), ids_V)
    for size in (1, 3, 50, 6143):
        ids_N = torch.from_numpy(np.random.default_rng(size).choice(VOCABULARY, size, replace=False))
        assert_few_ulps_apart(noise.gumbel(range(3), ids_N), whole[:, ids_N])
