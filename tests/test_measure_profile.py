"""Measuring a profile: the plan, cycles of real sessions on a known clock, and what disturbs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding import measure_profile
from decoding.controller import FixedController
from decoding.decoder import SpeculativeDecoder
from decoding.fit_profile import fit_profile
from decoding.measure_profile import Bench, LookupOnly, longest_context, measure_cycles, spare_cores
from decoding.other_load import OtherLoad
from decoding.profile_plan import blocks_of_cycles, contexts_between, row_counts
from decoding.sampling import Sampling
from decoding.timed_cycle import TimedCycle
from tests.profile_world import CONDITIONS, PRINTS, known_costs, law_of_level, law_of_rows

GREEDY = Sampling()


@pytest.fixture(scope="module")
def decoder(folder: Path, head: Path) -> SpeculativeDecoder:
    return of(folder, str(head))


def of(folder: Path, drafter: str) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(
        str(folder), drafter, device="cpu", dtype="float32", path="eager"
    )


def measured(decoder: SpeculativeDecoder, **changed: Any) -> list[TimedCycle]:
    settings: dict[str, Any] = {
        "contexts": (40, 160),
        "rows": row_counts(8, []),
        "max_depth": 3,
        "rounds": 4,
        "sampling": GREEDY,
        "rng": np.random.default_rng(0),
    }
    return measure_cycles(decoder, **{**settings, **changed})


# --- the plan ---------------------------------------------------------------------------------------------


def test_row_counts_are_all_up_to_17_then_fewer_and_those_asked_for() -> None:
    assert row_counts(64, [4, 32, 300]) == [*range(1, 18), 20, 24, 32, 33, 48, 64, 65]
    assert row_counts(5, [300]) == [1, 2, 3, 4, 5, 6]


def test_contexts_to_check_at_lie_between() -> None:
    assert contexts_between((64, 256, 1024)) == [128, 512]
    assert contexts_between((64,)) == [64]


def test_every_row_count_is_measured_at_every_context_and_no_held_out_setting_is_fitted() -> None:
    rows, nodes = row_counts(40, []), {1: 4, 2: 20, 3: 36, 4: 52}
    blocks = blocks_of_cycles((64, 256), rows, nodes, 5, np.random.default_rng(1), with_lookup=True)
    settings = [one for block in blocks for one in block]
    assert all(len({one.context for one in block}) == 1 for block in blocks)
    drafted = [one for one in settings if not one.lookup]
    fitted = Counter((one.context, one.size + 1) for one in drafted if not one.held_out)
    assert set(fitted) == {(context, count) for context in (64, 256) for count in rows}
    assert min(fitted.values()) >= 5
    held_out = {(one.draft_depth, one.size) for one in settings if one.held_out}
    seen = {(one.draft_depth, one.size) for one in settings if not one.held_out}
    assert held_out & seen == {(0, 0)}  # a plain step is one at every context
    assert {one.context for one in settings if one.held_out} == {128}
    assert len(held_out) > 15
    assert {size for _, size in held_out} - {count - 1 for count in rows}  # row counts between the measured
    assert all(nodes.get(one.draft_depth, 0) >= one.size for one in drafted)
    assert sum(one.lookup for one in settings) == 5 * 2 * 4


def test_the_plan_is_a_function_of_the_generator() -> None:
    def plan(seed: int) -> list[Any]:
        return blocks_of_cycles((64,), [1, 2, 3], {1: 4, 2: 9}, 3, np.random.default_rng(seed))

    assert plan(1) == plan(1) != plan(2)


# --- cycles of real sessions ------------------------------------------------------------------------------


def test_known_costs_of_real_sessions_are_found_again(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with known_costs(monkeypatch):
        cycles = measured(decoder)
    contexts = (40, 160)
    profile = fit_profile(cycles, contexts, PRINTS, CONDITIONS)
    assert profile.rows == tuple(range(1, 10))
    for context in (40, 100, 160):
        for rows in profile.rows:
            got = profile.verification_seconds(rows, context)
            assert got == pytest.approx(law_of_rows(rows, context), rel=0.01)
        for level in range(1, 4):
            for before in (1, 2):
                got = profile.level_seconds(level, context, before)
                assert got == pytest.approx(law_of_level(level, context, before), rel=0.05)
    assert profile.policy == 0  # the clock stands still while a controller answers


def test_a_draft_is_split_among_start_and_levels(decoder: SpeculativeDecoder) -> None:
    cycles = measured(decoder, rounds=3)
    assert {len(one.levels) for one in cycles} == {0, 1, 2, 3}
    for one in cycles:
        assert one.start + sum(one.levels) == pytest.approx(one.record.seconds.draft)
        assert len(one.levels) == one.record.draft_depth
        assert one.questions == (one.record.draft_depth + 2 if one.levels else 1)
        assert one.source == ("head" if one.levels else None)
        assert all(seconds > 0 for seconds in one.levels)


def test_tokens_since_the_head_drafted_are_counted(decoder: SpeculativeDecoder) -> None:
    bench = Bench(decoder, 40, GREEDY, np.random.default_rng(0))
    bench.cycle(FixedController(2, 4))
    last = bench.cycle(FixedController(2, 4)).record.emitted
    plain = [bench.cycle(FixedController(0, 1)) for _ in range(3)]
    assert [one.emitted_before for one in plain] == [last, last + 1, last + 2]
    assert bench.cycle(FixedController(1, 1)).emitted_before == last + 3


def test_a_bench_stays_near_its_context(decoder: SpeculativeDecoder) -> None:
    bench = Bench(decoder, 100, GREEDY, np.random.default_rng(0))
    at = [bench.cycle(FixedController(3, 8)).record.context_length for _ in range(120)]
    assert 84 <= min(at) <= max(at) <= 120
    assert min(at[60:]) < np.median(at)  # it has been opened anew


@pytest.mark.parametrize("kind", ["ngram", "composite", "merged"])
def test_lookups_are_measured_too(kind: str, folder: Path, head: Path) -> None:
    decoder = of(folder, kind if kind == "ngram" else f"{kind}:{head}")
    cycles = measured(decoder, contexts=(120,), rows=row_counts(4, []), rounds=6)
    profile = fit_profile(cycles, (120,), PRINTS, CONDITIONS)
    assert set(profile.levels) == ({"lookup"} if kind == "ngram" else {"head", "lookup"})
    assert profile.rows[0] == 1
    alone = [one for one in cycles if one.source == "lookup"]
    assert alone
    for one in cycles:
        assert one.source != "head" or len(one.levels) == one.record.draft_depth  # the joined chain apart
    if kind == "merged":
        assert all(one.record.draft_depth == 0 and one.questions == 2 and one.levels for one in alone)


def test_a_context_that_does_not_fit_is_one_line(decoder: SpeculativeDecoder) -> None:
    longest = longest_context(decoder)
    assert 300 < longest < decoder.target.context_limit == 512
    with pytest.raises(ValueError, match=f"contexts reach {longest + 1} tokens, must be <= {longest}: the"):
        measured(decoder, contexts=(40, longest + 1))
    bench = Bench(decoder, longest, GREEDY, np.random.default_rng(0))
    assert bench.cycle(FixedController(3, 8)).record.draft_depth == 3


# --- other processes --------------------------------------------------------------------------------------


class Others:
    """Says that others took all cores, the first `times` times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> Others:
        return self

    def cores(self) -> float:
        self.left -= 1
        return 9.0 if self.left >= 0 else 0.0


@pytest.mark.parametrize("times", [2, 10**9])
def test_disturbed_blocks_are_measured_again_and_else_marked(
    times: int, decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = measured(decoder, contexts=(40,), rounds=3)
    assert not any(one.disturbed for one in calm if spare_cores() > 64)
    monkeypatch.setattr(measure_profile, "OtherLoad", Others(times))
    cycles = measured(decoder, contexts=(40,), rounds=3)
    assert [one.disturbed for one in cycles] == [times > 2] * len(calm)


def test_own_work_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(100.0, 10.0, 0.0), (104.0, 13.0, 2.0), (105.0, 20.0, 4.0)])  # busy, own, wall
    monkeypatch.setattr(OtherLoad, "_read", lambda _: next(readings))
    load = OtherLoad()
    assert load.cores() == 0.5
    assert load.cores() == 0.0  # ticks are coarse: never negative


def test_a_machine_that_does_not_say_is_undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.other_load._STAT", Path("/nowhere"))
    load = OtherLoad()
    sum(range(10**5))
    assert load.cores() == 0.0


def test_a_lookup_alone_asks_for_no_level() -> None:
    controller = LookupOnly(3)
    assert not controller.wants_level(None)  # type: ignore[arg-type]
    assert controller.verification_size(None) == 3  # type: ignore[arg-type]
