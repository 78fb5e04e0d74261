"""The cost profile: its file, what it predicts, which sizes are cheapest, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.profile import PROFILE_FILE, Conditions, CostProfile, Source
from tests.profile_world import CONDITIONS, PRINTS, small_profile

SECONDS = st.floats(0, 10)


@st.composite
def profiles(draw: st.DrawFn) -> CostProfile:
    """Of any sizes; costs rise and fall as they come."""

    def table(rows: int, columns: int) -> tuple[tuple[float, ...], ...]:
        row = st.lists(SECONDS, min_size=columns, max_size=columns).map(tuple)
        return tuple(draw(st.lists(row, min_size=rows, max_size=rows)))

    contexts = tuple(sorted(draw(st.sets(st.integers(1, 5000), min_size=1, max_size=4))))
    last = draw(st.integers(1, 20))
    rows = tuple(range(1, last + 1)) + ((31,) if last >= 17 else ())
    tokens = (1, *sorted(draw(st.sets(st.integers(2, 40), max_size=3))))
    sources = draw(st.sampled_from([("head",), ("lookup",), ("head", "lookup")]))
    return CostProfile(
        fingerprints=PRINTS,
        conditions=replace(CONDITIONS, temperature=draw(SECONDS), beam_width=draw(st.none() | st.just(3))),
        contexts=contexts,
        rows=rows,
        start=table(1, len(contexts))[0],
        levels={source: table(draw(st.integers(1, 4)), len(contexts)) for source in sources},
        digest_tokens=tokens,
        digest=table(1, len(tokens))[0],
        selection=table(1, 3)[0],
        verification=table(len(rows), len(contexts)),
        verification_token=draw(SECONDS),
        commit=table(1, 2)[0],
        policy=draw(SECONDS),
        spread={"verification": table(len(rows), 2)},
        note={"seed": draw(st.integers(0, 2**32)), "held_out": None},
    )


# --- its file ---------------------------------------------------------------------------------------------


@given(profiles())
def test_it_survives_its_json(profile: CostProfile) -> None:
    assert CostProfile.from_json(json.loads(json.dumps(profile.to_json(), allow_nan=False))) == profile


def test_it_survives_its_file(tmp_path: Path) -> None:
    small_profile().save(tmp_path)
    assert CostProfile.load(tmp_path / PROFILE_FILE) == small_profile()
    assert [path.name for path in tmp_path.iterdir()] == [PROFILE_FILE]


def changed(**values: Any) -> dict[str, Any]:
    return {**small_profile().to_json(), **values}


def with_verification(value: Any) -> dict[str, Any]:
    table = [list(row) for row in small_profile().verification]
    table[2][1] = value
    return changed(verification=table)


BAD: list[tuple[Any, str]] = [
    ([1], "holds a list, not a JSON object"),
    ({}, "lacks 'schema_version'"),
    (changed(schema_version=2), "schema_version is 2, this code reads 1"),
    ({key: value for key, value in changed().items() if key != "policy"}, "lacks 'policy'"),
    (changed(extra=1), "unknown keys extra"),
    (changed(rows=[1, 2, 4, 5]), "rows lacks 3, must hold every count up to 17 or its last"),
    (changed(rows=[2, 3, 4, 5]), "rows lacks 1, must hold"),
    (changed(rows=[]), "rows is [], must be ascending whole numbers"),
    (changed(rows=[1, 2, 2, 3]), "rows is [1, 2, 2, 3], must be ascending"),
    (changed(rows=[1, 2, 3, 4]), "verification has 5 rows, must have 4"),
    (changed(contexts=[100, 10]), "contexts is [100, 10], must be ascending"),
    (changed(contexts=[10, True]), "contexts is [10, True], must be"),
    (changed(contexts=[10, 10**400]), "must be ascending whole numbers in 1..2147483647"),
    (changed(start=[0.1]), "start has 1 numbers, must have 2"),
    (changed(policy=-1e-9), "policy holds -1e-09, must be finite numbers >= 0"),
    (changed(policy="1"), "policy holds '1', must be finite"),
    (changed(policy=True), "policy holds True, must be finite"),
    (changed(commit=[0.1, float("nan")]), "commit holds nan, must be finite"),
    (with_verification(float("inf")), "verification holds inf, must be finite numbers >= 0"),
    (with_verification(-0.1), "verification holds -0.1, must be finite numbers >= 0"),
    (changed(levels={}), "levels are of [], must be of head or lookup"),
    (changed(levels={"oracle": [[0.1, 0.1]]}), "levels are of ['oracle'], must be of head or lookup"),
    (changed(levels={"head": []}), "levels of the head has 0 rows, must have 1"),
    (changed(digest_tokens=[2, 3]), "digest_tokens begins with 2, must begin with 1"),
    (changed(fingerprints={"target": "a"}), "fingerprints are of target, must be of target, drafter"),
    (changed(conditions={"device": "x"}), "cannot be used"),
    (
        changed(conditions={**small_profile().to_json()["conditions"], "threads": 0}),
        "threads is [0], must be",
    ),
]


@pytest.mark.parametrize(("raw", "says"), BAD, ids=[says for _, says in BAD])
def test_a_file_that_is_none_is_refused_in_one_line(raw: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / PROFILE_FILE
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ValueError, match="profile") as caught:
        CostProfile.load(path)
    line = str(caught.value)
    assert says in line
    assert str(path) in line
    assert "\n" not in line


@pytest.mark.parametrize("cut", [0, 1, 40, -3])
def test_a_truncated_file_or_none_is_one_line(cut: int, tmp_path: Path) -> None:
    path = tmp_path / PROFILE_FILE
    with pytest.raises(ValueError, match="does not exist"):
        CostProfile.load(path)
    small_profile().save(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="is not readable JSON") as caught:
        CostProfile.load(path)
    assert "\n" not in str(caught.value)


def test_another_model_pair_is_refused_and_another_machine_is_a_warning() -> None:
    profile = small_profile()
    assert profile.check_matches(PRINTS, CONDITIONS) == []
    for what in PRINTS:
        with pytest.raises(ValueError, match=f"measured on {what} {PRINTS[what]}, this is zz: profile again"):
            profile.check_matches({**PRINTS, what: "zz"}, CONDITIONS)
    warnings = profile.check_matches(PRINTS, replace(CONDITIONS, threads=7, dtype="bfloat16"))
    assert warnings == [
        "the profile was measured with dtype float32, this is bfloat16: its times may not fit",
        "the profile was measured with threads 2, this is 7: its times may not fit",
    ]


# --- what it predicts -------------------------------------------------------------------------------------


def line(costs: tuple[float, ...], knots: tuple[int, ...], at: float) -> float:
    """Linear between knots, flat below, the last slope above but never downwards; in a plain loop."""
    if at <= knots[0] or len(knots) == 1:
        return costs[0]
    for place in range(len(knots) - 1):
        low, high = knots[place], knots[place + 1]
        if at <= high or place == len(knots) - 2:
            value = costs[place] + (at - low) / (high - low) * (costs[place + 1] - costs[place])
            return max(value, costs[-1]) if at > knots[-1] else value
    raise AssertionError


def verified(profile: CostProfile, rows: int, context: int) -> float:
    for place, count in enumerate(profile.rows):
        here = line(profile.verification[place], profile.contexts, context)
        if count == rows:
            return here
        if count > rows:
            below = profile.rows[place - 1]
            before = line(profile.verification[place - 1], profile.contexts, context)
            return before + (rows - below) / (count - below) * (here - before)
    raise AssertionError


@given(profiles(), st.data())
def test_a_cycle_is_the_sum_of_its_parts_in_a_plain_loop(profile: CostProfile, data: st.DataObject) -> None:
    source: Source = data.draw(st.sampled_from(sorted(profile.levels)))
    number = data.draw(st.integers(1, 4))

    def some(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=number, max_size=number))

    depths, sizes = some(0, len(profile.levels[source])), some(0, profile.max_size)
    contexts, before, emitted = some(1, 9000), some(1, 90), some(1, 9)
    depth_N, size_N, context_N = map(np.array, (depths, sizes, contexts))
    got = profile.cycle_seconds(depth_N, size_N, context_N, np.array(before), np.array(emitted), source)
    for place, (depth, size, context) in enumerate(zip(depths, sizes, contexts, strict=True)):
        want = line(profile.start, profile.contexts, context)
        for level in range(depth):
            want += line(profile.levels[source][level], profile.contexts, context)
            if level == 0 and source == "head":
                want += line(profile.digest, profile.digest_tokens, before[place])
        want += profile.selection[0] + profile.selection[1] * depth + profile.selection[2] * size
        want += verified(profile, size + 1, context) + profile.verification_token * (emitted[place] - 1)
        want += profile.commit[0] + profile.commit[1] * (emitted[place] - 1)
        want += profile.policy * (depth + 2 if depth else 1)
        assert got[place] == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_a_measured_row_count_is_exact_beside_a_dear_one() -> None:
    profile = small_profile()
    for place, count in enumerate(profile.rows):
        for column, context in enumerate(profile.contexts):
            assert profile.verification_seconds(count, context) == profile.verification[place][column]
    assert profile.verification_seconds(2, 10) > profile.verification_seconds(5, 10)


def test_arrays_broadcast_and_numbers_are_numbers() -> None:
    profile = small_profile()
    grid = profile.cycle_seconds(np.array([[1], [2]]), np.array([0, 2, 4]), 50)
    assert grid.shape == (2, 3)
    assert grid[1, 2] == profile.cycle_seconds(2, 4, 50)
    assert profile.cycle_seconds(1, 2, 50, questions=9) > profile.cycle_seconds(1, 2, 50)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda one: one.verification_seconds(6, 10), "rows spans 6..6, must be in 1..5"),
        (lambda one: one.verification_seconds(0, 10), "rows spans 0..0, must be in 1..5"),
        (lambda one: one.level_seconds(3, 10), "level spans 3..3, must be in 1..2"),
        (lambda one: one.level_seconds(1, 10, source="lookup"), "source is 'lookup', the profile has head"),
        (lambda one: one.cycle_seconds(1, 9, 10), "rows spans 10..10, must be in 1..5"),
        (lambda one: one.cycle_seconds(3, 1, 10), "level spans 3..3, must be in 1..2"),
        (lambda one: one.cycle_seconds(-1, 1, 10), "draft_depth spans -1..-1, must be >= 0"),
        (lambda one: one.start_seconds(0), "context spans 0..0, must be >= 1"),
        (lambda one: one.start_seconds(1.5), "context is of float64, must be whole numbers"),
        (lambda one: one.commit_seconds(0), "emitted spans 0..0, must be >= 1"),
        (lambda one: one.cheapest_size(5), "size spans 5..5, must be in 0..4"),
    ],
)
def test_what_was_not_measured_is_refused_in_one_line(ask: Any, says: str) -> None:
    with pytest.raises(ValueError, match=r"must be|the profile has") as caught:
        ask(small_profile())
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# --- sizes ------------------------------------------------------------------------------------------------


@given(profiles(), st.data())
def test_the_cheapest_size_is_the_cheapest_of_all_at_or_above(
    profile: CostProfile, data: st.DataObject
) -> None:
    size = data.draw(st.integers(0, profile.max_size))
    context = data.draw(st.integers(1, 6000))
    got = profile.cheapest_size(size, context)
    costs = {
        other: float(profile.verification_seconds(other + 1, context))
        for other in [size, *(count - 1 for count in profile.rows)]
        if other >= size
    }
    cheapest = min(costs.values())
    assert got == min(other for other, cost in costs.items() if cost == cheapest)


def test_a_size_is_rounded_up_past_a_dear_row_count() -> None:
    profile = small_profile()  # 2 and 3 rows cost more than 4 and 5
    assert [profile.cheapest_size(size, 10) for size in range(5)] == [0, 3, 3, 3, 4]
    assert profile.cheapest_size(1) == 3


def test_conditions_are_checked() -> None:
    for name, value in (("device", 1), ("threads", 0), ("temperature", -1.0), ("beam_width", 0)):
        with pytest.raises(ValueError, match=name):
            Conditions(**{**small_profile().to_json()["conditions"], name: value})
