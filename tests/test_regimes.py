"""Cost regimes: profiles by hand, ratios by hand, and a world where learning pays at some costs only."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.regime_chart import save_chart
from benchmarks.regimes import printed
from decoding.profile import CostProfile
from evaluation import statistics
from evaluation.paired_seconds import claim_all, compare_seconds, groups_of
from evaluation.regime_costs import MEASURED, REGIMES, CostRegime
from evaluation.regimes import RegimeTexts, cost_regimes
from evaluation.schema_parts import Regime
from policies.full_information import FullInformationSettings
from tests.decision_world import flat_profile, made_up_table
from tests.profile_world import small_profile

BY_NAME = {regime.name: regime for regime in REGIMES}
SETTINGS = FullInformationSettings(rounds=2, epochs=12, batch=256)
# --- the profiles ------------------------------------------------------------------------------------------


def changed(name: str, profile: CostProfile) -> set[str]:
    """Fields that a regime changes, what labels it left out."""
    made = BY_NAME[name].profile(profile)
    differ = {one.name for one in fields(made) if getattr(made, one.name) != getattr(profile, one.name)}
    return differ - {"conditions", "note", "spread"}


def test_costs_by_hand() -> None:
    rows = tuple(range(1, 18))
    given = replace(
        small_profile(), rows=(*rows, 64, 128), verification=tuple((0.1 + n, 0.2 + n) for n in range(19))
    )
    flat, cliff, drafter, target = (BY_NAME[name].profile(given) for name in list(BY_NAME)[1:])
    assert flat.verification == ((0.1, 0.2),) * 18 + ((0.2, 0.4),)
    assert cliff.verification == ((0.1, 0.2),) * 8 + ((0.2, 0.4),) * 10 + ((0.4, 0.8),)
    assert flat.levels == cliff.levels == {"head": ((0.005, 0.01), (0.015, 0.015))}
    assert flat.digest == (0.0, 0.002)
    assert drafter.levels["head"] == ((0.01 * 3, 0.02 * 3), (0.03 * 3, 0.03 * 3))
    assert drafter.digest == (0.0, 0.004 * 3)
    assert target.verification == tuple((4 * low, 4 * high) for low, high in given.verification)
    assert changed("measured", given) == set()
    assert changed("flat", given) == changed("cliff", given) == {"levels", "digest", "verification"}
    assert changed("slow drafter", given) == {"levels", "digest"}
    assert changed("slow target", given) == {"verification"}


def test_what_is_made_up_says_so() -> None:
    given = replace(small_profile(), spread={"commit": ((0.9, 1.1),)}, note={"rounds": 14})
    for regime in REGIMES:
        made = regime.profile(given)
        assert regime.synthetic == (regime is not MEASURED)
        assert ("synthetic" in made.conditions.device) == regime.synthetic
        assert ("synthetic" in made.note) == regime.synthetic
        assert bool(made.spread) != regime.synthetic
        assert made.fingerprints == given.fingerprints
    assert MEASURED.profile(given) is given


# --- the ratios --------------------------------------------------------------------------------------------


def test_ratios_are_of_speeds_paired_by_question() -> None:
    names = ("en-1", "it-1", *(f"q{number}" for number in range(6)))
    groups_T = groups_of(names, ("en", "it", *[""] * 6))
    assert len(set(groups_T.tolist())) == 7
    assert groups_T[0] == groups_T[1]
    mine = np.array([1.0, 3.0, 1, 1, 1, 1, 1, 1])
    theirs = np.array([3.0, 5.0, 1, 1, 1, 1, 1, 1])  # 8 seconds for 4 of one question, the others alike
    found = compare_seconds("a", "b", mine, theirs, groups_T, np.random.default_rng(0))
    assert found.groups == 7
    assert found.ratio == pytest.approx(math.exp(math.log(2) / 7))
    assert found.ratio_of_sums == 14 / 10
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.ratio <= found.high
    assert not found.claimed
    few = compare_seconds("a", "b", mine, theirs, np.zeros(8, dtype=np.int64), np.random.default_rng(0))
    assert (few.low, few.high, few.p_value, few.claimed) == (None, None, None, False)


def test_claims_are_adjusted_over_all_comparisons() -> None:
    rng = np.random.default_rng(2)
    groups_T = np.arange(12)
    ones = np.ones(12)
    noise = np.exp(rng.normal(0.08, 0.1, 12))
    near = compare_seconds("a", "b", ones, noise, groups_T, np.random.default_rng(0))
    sure = compare_seconds("a", "b", ones, 2 * ones, groups_T, np.random.default_rng(0))
    assert near.p_value is not None
    assert 0.01 < near.p_value < 0.05
    assert near.claimed
    assert [one.claimed for one in claim_all([near, sure, near, near, near, near])] == [
        False,
        True,
        *[False] * 4,
    ]


# --- the world ---------------------------------------------------------------------------------------------


def world(seed: int, texts: int = 24, tokens: int = 60) -> RegimeTexts:
    """A feature tells where a draft is accepted; elsewhere nothing is. Half of the positions are so."""
    seen_P = np.random.default_rng(seed).integers(0, 2, texts * tokens).astype(float)
    emitted_PNS = np.ones((texts * tokens, 3, 2), dtype=np.int64)
    emitted_PNS[seen_P > 0, 1] = 2
    emitted_PNS[seen_P > 0, 2] = 3
    table = made_up_table(emitted_PNS, seen_P, [tokens] * texts)
    return RegimeTexts(((table, flat_profile(0.3, {1: 1.0, 65: 1.0})),))


@pytest.fixture(scope="module")
def rows() -> dict[str, Regime]:
    said: list[str] = []
    regimes = (*REGIMES, CostRegime("free drafter", "levels cost nothing", _free))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 1999)  # 40 bootstraps
        found = cost_regimes(world(0), world(1), 0.0, SETTINGS, 1, said.append, regimes)
    assert len(said) == len(regimes) * (2 + SETTINGS.rounds)
    return {row.name: row for row in found}


def _free(profile: CostProfile) -> CostProfile:
    return replace(profile, levels={"head": ((0.0, 0.0), (0.0, 0.0))})


def test_learning_pays_where_a_draft_costs_something_and_not_where_it_is_free(
    rows: dict[str, Regime],
) -> None:
    assert list(rows) == [*BY_NAME, "free drafter"]
    measured, free, slow = (rows[name] for name in ("measured", "free drafter", "slow drafter"))
    assert measured.learned.ratio > 1.1
    assert measured.learned.low is not None
    assert measured.learned.low > 1.05
    # Nothing is lost by drafting everywhere, the most that there is.
    assert (free.best_fixed, free.best_hindsight) == ("all 2x1", "all 2x1")
    assert free.learned.ratio == pytest.approx(1, abs=1e-6)
    # Levels of .9 do not pay in half of the places, and hardly in the other half.
    assert slow.best_fixed == "plain"
    assert slow.best_fixed_vs_plain == 1
    assert 1.0 < slow.learned.ratio < 1.06
    assert slow.not_retrained is not None
    assert rows["slow target"].learned.ratio < measured.learned.ratio


def test_the_clairvoyant_bound_is_one_and_the_first_policy_is_the_others_yardstick(
    rows: dict[str, Regime],
) -> None:
    for row in rows.values():
        assert row.clairvoyant is not None
        assert row.over_hindsight is not None
        assert row.clairvoyant.ratio_of_sums >= row.learned.ratio_of_sums - 1e-6
        assert row.over_hindsight.ratio_of_sums <= row.learned.ratio_of_sums + 1e-9
        assert (row.not_retrained is None) == (row.retraining is None) == (row.name == "measured")
        assert row.synthetic == (row.name != "measured")
        assert not row.live
        assert (row.learned.a, row.learned.b) == ("learned", "best fixed")
        if row.not_retrained is not None and row.retraining is not None:
            both = row.not_retrained.ratio_of_sums * row.retraining.ratio_of_sums
            assert both == pytest.approx(row.learned.ratio_of_sums)


def test_the_same_seed_learns_the_same(rows: dict[str, Regime]) -> None:
    again = cost_regimes(world(0), world(1), 0.0, SETTINGS, 1, lambda _: None, REGIMES[:1])
    assert again[0].learned.ratio == rows["measured"].learned.ratio


def test_recordings_at_several_temperatures_have_costs_of_their_own() -> None:
    (part,) = world(0, texts=8).parts
    dear = flat_profile(0.3, {1: 2.0, 65: 2.0})
    both = RegimeTexts((part, (part[0], dear)))
    assert both.table.texts == 16
    costs = both.costs(MEASURED, 0.0)
    assert costs.plain_P[0] == 1
    assert costs.plain_P[-1] == 2
    assert both.costs(BY_NAME["slow target"], 0.5).plain_P[-1] == 8
    assert both.costs(BY_NAME["slow target"], 0.5).question == 0.5


def test_table_and_chart(rows: dict[str, Regime], tmp_path: Path) -> None:
    lines = printed(list(rows.values()))
    assert lines.row_count == len(rows)
    assert "slow target (synthetic): every target forward x 4" in str(lines.caption)
    assert "measured: as measured" in str(lines.caption)
    save_chart(list(rows.values()), tmp_path / "a.svg")
    save_chart(list(rows.values()), tmp_path / "b.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text()
    assert drawn.startswith("<?xml")
