"""Predicted against measured: worlds in which the cost model is exact, and by how much one rate is off."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from decoding.controller import RootChoice
from decoding.decision_costs import decision_costs
from decoding.decision_table import DecisionTable
from decoding.decision_walk import replay_texts
from decoding.profile import CostProfile
from decoding.setting import Setting
from evaluation.cross_check import cross_check, fixed_settings, mean_errors, predict
from evaluation.fixed_cycles import fixed_cycles
from evaluation.schema_parts import CrossCheck
from policies.baselines import constant
from tests.chain_world import chain_table
from tests.cycle_world import DECISIONS, merged_table
from tests.decision_world import flat_profile
from tests.random_tables import random_table
from tests.test_replay_session import profile as merged_profile

DEPTH = 3
LEVEL = 0.125  # of a plain step
VERIFICATION = {1: 1.0, 2: 1.25, 3: 1.5, 4: 2.0}
PROFILE = replace(flat_profile(LEVEL, VERIFICATION), levels={"head": ((LEVEL, LEVEL),) * DEPTH})


def chain(depth: int) -> Setting:
    return Setting(RootChoice.ALL, depth, DEPTH)


SETTINGS = {depth: chain(depth) for depth in range(1, DEPTH + 1)}


def replayed(table: DecisionTable, profile: CostProfile, setting: Setting) -> float:
    """Speed-up by replay, which takes every cycle's own costs."""
    costs = decision_costs(table, profile)
    plain = Setting(RootChoice.PLAIN, 0, 0)
    seconds = [
        replay_texts(table, costs, constant(table.features, table.decisions, one)).sum()
        for one in (plain, setting)
    ]
    return float(seconds[0] / seconds[1])


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.9])
def test_where_every_token_is_as_likely_both_formulas_are_what_cycles_do(rate: float) -> None:
    rng = np.random.default_rng(0)
    table = chain_table([rng.random(300) < rate for _ in range(100)], DEPTH)
    profile = PROFILE
    for depth, setting in SETTINGS.items():
        said = predict(table, profile, setting)
        assert float(said.acceptance_rate) == pytest.approx(rate, abs=0.01)
        exact = sum(rate**step for step in range(depth + 1))
        assert float(said.emitted) == pytest.approx(exact, rel=0.015)
        assert float(said.emitted_constant_alpha) == pytest.approx(exact, rel=0.015)
        assert said.joint == pytest.approx(replayed(table, profile, setting), rel=1e-6)
        time = LEVEL * depth + VERIFICATION[depth + 1]
        assert said.joint == pytest.approx(exact / time, rel=0.015)
        assert said.theorem == pytest.approx(exact / (1 + LEVEL * depth), rel=0.015)


@pytest.mark.parametrize("foretold", [True, False])
def test_of_a_sure_thing_both_formulas_are_exact(foretold: bool) -> None:
    """Twelve tokens are whole cycles of 2, 3 and 4."""
    table = chain_table([[foretold] * 12], DEPTH)
    for depth, setting in SETTINGS.items():
        said = predict(table, PROFILE, setting)
        assert said.acceptance_rate == foretold
        assert said.emitted == said.emitted_constant_alpha == (depth + 1 if foretold else 1)
        assert said.prefixes == (1,) * (depth * foretold)
        drafting = LEVEL * depth + VERIFICATION[depth + 1]
        # Where nothing is accepted the twelfth cycle is at the last token, a plain step.
        time = drafting if foretold else (11 * drafting + 1) / 12
        assert said.joint == said.constant_alpha == pytest.approx(float(said.emitted) / time, rel=1e-12)


def test_two_kinds_of_text_by_hand() -> None:
    """One text accepts everything, one nothing, of twelve tokens each. At depth 3 they take 3 and 12 cycles,
    so E is 24 / 15 = 8 / 5, and 1 in 5 cycles accepts all. Half of the positions accept their next token:
    the one rate promises 1 + 1/2 + 1/4 + 1/8 = 15 / 8, 75 / 64 of what comes."""
    table = chain_table([[True] * 12, [False] * 12], DEPTH)
    profile = PROFILE
    cycles = fixed_cycles(table, chain(3))
    assert (len(cycles.emitted_N), int(cycles.emitted_N.sum())) == (15, 24)
    said = predict(table, profile, chain(3))
    assert said.prefixes == (Fraction(1, 5),) * 3
    assert said.acceptance_rate == Fraction(1, 2)
    assert (said.emitted, said.emitted_constant_alpha) == (Fraction(8, 5), Fraction(15, 8))
    by_clock = {depth: replayed(table, profile, setting) for depth, setting in SETTINGS.items()}
    rows = cross_check(table, profile, SETTINGS, {0: 1.0, **by_clock}, {2: (1.0, 1.5)})
    assert [row.draft_depth for row in rows] == [0, 1, 2, 3]
    assert [row.joint for row in rows] == pytest.approx([row.measured for row in rows], rel=1e-7)
    assert rows[3].constant_alpha / rows[3].measured == pytest.approx(75 / 64, rel=1e-7)
    # 24 tokens in 18 and in 16 cycles, of which 2 and 4 are what is foretold
    off = [Fraction(3, 2) / Fraction(24, 18), Fraction(7, 4) / Fraction(24, 16), Fraction(75, 64)]
    errors = mean_errors(rows)
    assert errors["constant_alpha"] == pytest.approx(float(sum(off) / 3) - 1, rel=1e-6)
    assert errors["joint"] == pytest.approx(0, abs=1e-7)
    assert [(row.low, row.high) for row in rows] == [(None, None), (None, None), (1.0, 1.5), (None, None)]
    assert {row.verification_size for row in rows[1:]} == {DEPTH}
    assert rows[3].emitted == 1.6
    assert (rows[0].joint, rows[0].constant_alpha, rows[0].theorem) == (1, 1, 1)


def test_cycles_begin_where_the_one_before_ended() -> None:
    """By hand, depth 2: 1 1 0 | 0 | 1 (1) | 0: the last but one is cut at the text's end."""
    cycles = fixed_cycles(
        chain_table([[True, True, False, False, True, True]], 2), Setting(RootChoice.ALL, 2, 2)
    )
    assert cycles.emitted_N.tolist() == [3, 1, 2]
    assert cycles.prefixes() == (Fraction(2, 3), Fraction(1, 3))
    assert cycles.levels_N.tolist() == cycles.size_N.tolist() == [2, 2, 2]
    assert cycles.questions_N.tolist() == [3, 3, 3]
    # of the five positions that are asked, at 0, 1 and 4 a draft begins well
    assert cycles.first_accepted == Fraction(3, 5)
    alone = fixed_cycles(chain_table([[True, False, True]], 2), Setting(RootChoice.ALL, 1, 2))
    assert alone.emitted_N.tolist() == [2, 1]
    assert alone.levels_N.tolist() == [1, 0]  # of the last token nobody is asked
    assert alone.questions_N.tolist() == [2, 0]


@pytest.mark.parametrize("seed", range(12))
def test_every_kind_of_setting_takes_the_cycles_that_a_replay_takes(seed: int) -> None:
    """Of merged drafts too: as many tokens, levels and nodes by way of costs that count one of them each."""
    table = random_table(np.random.default_rng(seed), texts=4, tokens=12)
    zero = replace(flat_profile(0.0, {1: 0.0, 8: 0.0}), levels={"head": ((0.0, 0.0),) * 3})
    counting = {
        "cycles": replace(zero, commit=(1.0, 0.0)),
        "levels": replace(zero, selection=(0.0, 1.0, 0.0)),
        "nodes": replace(zero, selection=(0.0, 0.0, 1.0)),
        "questions": replace(zero, policy=1.0),
    }
    for choice, composite in (
        (RootChoice.ALL, False),
        (RootChoice.HEAD, False),
        (RootChoice.ALL, True),
    ):
        setting = Setting(choice, 2, 3, composite)
        cycles = fixed_cycles(table, setting)
        assert int(cycles.emitted_N.sum()) == table.positions
        decide = constant(table.features, table.decisions, setting)
        counted = {
            name: float(replay_texts(table, decision_costs(table, one), decide).sum())
            for name, one in counting.items()
        }
        assert counted == {
            "cycles": len(cycles.emitted_N),
            "levels": cycles.levels_N.sum(),
            "nodes": cycles.size_N.sum(),
            "questions": cycles.questions_N.sum(),
        }


@pytest.mark.parametrize("kind", ["head", "composite", "merged"])
def test_of_recorded_texts_it_says_what_a_replay_does(kind: str) -> None:
    """Where costs do not depend on the context the two are one, digest, lookups and questions included."""
    table, known = merged_table(), merged_profile(digest=0.001)
    middle = 1
    profile = replace(
        known,
        start=(known.start[middle],) * len(known.start),
        levels={
            source: tuple((row[middle],) * len(row) for row in rows) for source, rows in known.levels.items()
        },
        verification=tuple((row[middle],) * len(row) for row in known.verification),
    )
    for depth, setting in fixed_settings(DECISIONS.choices, range(5), 9, "merged")[kind].items():
        said = predict(table, profile, setting)
        assert said.joint == pytest.approx(replayed(table, profile, setting), rel=1e-5)
        assert said.draft_depth == depth
        assert float(said.cost.time(depth)) > 0


def test_settings_by_what_they_draft_with() -> None:
    merged = fixed_settings((RootChoice.ALL, RootChoice.LOOKUP, RootChoice.HEAD), (0, 1, 4), 8, "merged")
    assert {name: [str(one) for one in some.values()] for name, some in merged.items()} == {
        "head": ["head 1x8", "head 4x8"],
        "composite": ["composite 1x8", "composite 4x8"],
        "merged": ["all 1x8", "all 4x8"],
    }
    assert fixed_settings((RootChoice.ALL,), (2,), 4, "eagle") == {
        "eagle": {2: Setting(RootChoice.ALL, 2, 4)}
    }


def test_mistakes_are_one_line() -> None:
    table, profile = chain_table([[True] * 4], DEPTH), PROFILE
    with pytest.raises(ValueError, match=r"depths \[4\] were measured without a setting"):
        cross_check(table, profile, SETTINGS, {0: 1.0, 4: 2.0})
    with pytest.raises(ValueError, match="setting plain drafts no level"):
        predict(table, profile, Setting(RootChoice.PLAIN, 0, 0))
    with pytest.raises(ValueError, match="every text has one token"):
        fixed_cycles(chain_table([[True]], DEPTH), chain(1))
    with pytest.raises(ValueError, match="no row drafts"):
        mean_errors([CrossCheck(draft_depth=0, measured=1, joint=1, constant_alpha=1)])
