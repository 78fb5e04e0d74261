"""Sums over cycles: by hand, and that sums of parts are sums of the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.metrics import (
    CycleSummary,
    acceptance_length,
    acceptance_rate,
    merge,
    summarise,
    tokens_per_second,
)
from decoding.records import CycleRecord, PhaseSeconds


def cycle(
    accepted: tuple[bool, ...], emitted: int, depth: int = 0, size: int = 0, **seconds: float
) -> CycleRecord:
    return CycleRecord(depth, size, accepted, tuple(range(emitted)), 10, PhaseSeconds(**seconds))


BY_HAND = [
    cycle((), 1, verify=0.5),  # a plain step
    cycle((True, True, False), 3, depth=3, size=4, draft=0.25, verify=0.5, policy=0.25),
    cycle((False,), 1, depth=2, size=2, select=0.125, verify=0.25, commit=0.125),
    cycle((True, True, True), 2, depth=3, size=3, draft=1.0, verify=1.0),  # cut at end-of-text
]


def test_by_hand() -> None:
    assert tokens_per_second(BY_HAND) == 7 / 4
    assert acceptance_length(BY_HAND) == 7 / 4
    # depth 1 offered thrice, accepted twice; depth 2 twice of twice; depth 3 once of twice
    assert acceptance_rate(BY_HAND) == (2 / 3, 1.0, 1 / 2)
    assert summarise(BY_HAND) == CycleSummary(
        cycles=4,
        emitted=7,
        drafted_levels=8,
        verified_nodes=9,
        offered_by_depth=(3, 2, 2),
        accepted_by_depth=(2, 2, 1),
        seconds=PhaseSeconds(draft=1.25, select=0.125, verify=2.25, commit=0.125, policy=0.25),
    )
    assert summarise(BY_HAND).policy_overhead == 0.25 / 4


def test_throughput_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    fast, slow = cycle((True, True), 3, verify=0.5), cycle((), 1, verify=1.5)
    assert tokens_per_second([fast, slow]) == 4 / 2
    assert (fast.tokens_per_second + slow.tokens_per_second) / 2 != 4 / 2


def test_plain_decoding_has_tau_one_and_no_acceptance_rate() -> None:
    plain = [cycle((), 1, verify=0.1)] * 3
    assert acceptance_length(plain) == 1
    assert acceptance_rate(plain) == ()


def test_nothing_is_not_a_number() -> None:
    for what in (tokens_per_second, acceptance_length):
        with pytest.raises(ValueError, match=r"(0|no) cycles"):
            what([])
    with pytest.raises(ValueError, match=r"1 cycles took 0\.0 seconds"):
        tokens_per_second([cycle((), 1)])
    with pytest.raises(ValueError, match="no share"):
        _ = CycleSummary().policy_overhead
    assert acceptance_rate([]) == ()
    assert summarise([]) == merge([]) == CycleSummary()


# eighths of a second: their sums are exact, in any order
eighths = st.integers(0, 80).map(lambda count: count / 8)
cycles = st.builds(
    lambda hits, missed, depth, size, draft, policy: cycle(
        (True,) * hits + (False,) * missed, hits + 1, depth, size, draft=draft, policy=policy, verify=0.125
    ),
    st.integers(0, 5),
    st.integers(0, 1),
    st.integers(0, 6),
    st.integers(0, 20),
    eighths,
    eighths,
)


@given(st.lists(st.lists(cycles, max_size=5), max_size=5))
def test_a_merge_of_parts_is_the_summary_of_all(parts: list[list[CycleRecord]]) -> None:
    assert merge(map(summarise, parts)) == summarise(record for part in parts for record in part)


@given(st.lists(cycles, min_size=1, max_size=12))
def test_shares_and_rates_keep_their_bounds(records: list[CycleRecord]) -> None:
    summary = summarise(records)
    assert summary.acceptance_length >= 1
    assert 0 <= summary.policy_overhead <= 1
    assert all(0 <= rate <= 1 for rate in summary.acceptance_rate)
    offered = summary.offered_by_depth
    assert list(offered) == sorted(offered, reverse=True)
    assert summary.emitted == summary.cycles + sum(summary.accepted_by_depth)  # a closing token each
