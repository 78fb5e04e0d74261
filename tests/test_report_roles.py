"""Which arms a report compares, and with which of plain decoding's texts, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from decoding.controller import PlainController
from evaluation.arm_results import Roles, arm_result, main_observations
from evaluation.protocol import Arm, FixedSetting, Observation
from evaluation.report import pairs_of
from tests.made_up import LEARNED, PLAIN, by_hand, printed, report_of

GROUPS = 12
BEST = Arm("best fixed", PlainController, "fixed", FixedSetting("merged", 2, 5))
SECOND = Arm("second fixed", PlainController, "fixed", FixedSetting("merged", 1, 3))
AGAIN = Arm("best fixed again", PlainController, "fixed", FixedSetting("merged", 2, 5))
RULE = Arm("svip", PlainController, "rule")
ASKED = Arm("policy overridden", PlainController, "rule")
CORNER = Arm("corner", PlainController, "fixed", FixedSetting("merged", 6, 8))
ARMS = [PLAIN, BEST, SECOND, AGAIN, RULE, LEARNED, ASKED, CORNER]
ROLES = Roles(
    best=("best fixed", "second fixed"),
    again="best fixed again",
    overridden="policy overridden",
    rest=frozenset({"corner"}),
    about={"svip": ("a paper", "threshold .3")},
)
SPEEDS = {
    "plain": 10.0,
    "best fixed": 15.0,
    "second fixed": 15.5,
    "best fixed again": 15.0,
    "svip": 14.0,
    "learned": 17.0,
    "policy overridden": 14.9,
}


def rows(spread: float = 0.01, **speeds: float) -> list[Observation]:
    """Main arms on twelve questions; the rest, plain decoding among them, on two, three times as fast."""
    noise = np.random.default_rng(0)
    found = []
    for arm in ARMS[:-1]:
        speed = (SPEEDS | speeds)[arm.name]
        found += by_hand(arm, [math.exp(noise.normal(0, spread)) / speed for _ in range(GROUPS)])
    apart = [*by_hand(PLAIN, [1 / 30] * 2), *by_hand(CORNER, [1 / 45] * 2)]
    return found + [replace(row, repeat=1, block=100 + row.block) for row in apart]


def test_what_is_claimed_is_over_every_main_arm_and_the_checks_are_no_claims() -> None:
    assert pairs_of(ARMS[:-1], "plain", "learned", ROLES.best, ROLES) == [
        ("learned", "best fixed"),
        ("learned", "second fixed"),
        ("learned", "plain"),
        ("learned", "svip"),
        ("best fixed", "plain"),
    ]
    assert pairs_of(ARMS[:2], "plain", None, ("best fixed",), ROLES) == [("best fixed", "plain")]
    grid = [PLAIN, BEST, SECOND, LEARNED]
    assert pairs_of(grid, "plain", "learned", ("best fixed",), Roles()) == [
        ("learned", "best fixed"),
        ("learned", "plain"),
        ("best fixed", "plain"),
    ]


def test_the_headline_is_the_harder_of_the_best_two() -> None:
    report = report_of(ARMS, rows(), roles=ROLES)
    assert "draft depth 1, size 3; of the best two on validation texts the harder to beat" in report.verdict
    assert report.verdict.startswith("The learned policy won: ")
    assert report.power is not None
    assert report.power.groups == GROUPS
    other = report_of(ARMS, rows(**{"best fixed": 16.0}), roles=ROLES)
    assert "draft depth 2, size 5; of the best two" in other.verdict


def test_the_rest_is_compared_with_plain_decoding_of_its_own_texts() -> None:
    found = rows()
    report = report_of(ARMS, found, roles=ROLES)
    assert report.arms["corner"].speedup_vs_plain == pytest.approx(1.5)
    assert report.arms["corner"].requests == 2
    assert report.arms["plain"].requests == GROUPS  # not those that it decoded beside the rest
    assert report.arms["plain"].tokens_per_second == pytest.approx(10, rel=0.02)
    assert {row.repeat for row in main_observations(found, ROLES)} == {0}
    over = report.arms["corner"].over_plain
    assert over is not None
    assert (over.ratio, over.groups, over.claimed) == (pytest.approx(1.5), 2, False)
    assert report.by_category["(none)"].keys() == {arm.name for arm in ARMS} - {"corner"}
    assert report.free_running == {}
    assert "best fixed again" not in [f"{one.drafter} {one.draft_depth}" for one in report.grid]
    assert len(report.grid) == 2
    assert "corner (2 texts only)" in printed(report)


def test_the_check_and_the_overhead() -> None:
    report = report_of(ARMS, rows(), roles=ROLES)
    assert report.aa is not None
    assert (report.aa.a, report.aa.b, report.aa.usable) == ("best fixed", "best fixed again", True)
    assert report.overhead is not None
    assert (report.overhead.a, report.overhead.b) == ("policy overridden", "best fixed")
    assert report.overhead.ratio == pytest.approx(14.9 / 15, rel=0.01)
    assert (report.arms["svip"].source, report.arms["svip"].tuned) == ("a paper", "threshold .3")
    broken = report_of(ARMS, rows(**{"best fixed again": 15.4}), roles=ROLES)
    assert broken.aa is not None
    assert not broken.aa.usable
    assert not any(row.claimed for row in broken.comparisons)
    assert broken.verdict.startswith("Unusable: one arm measured twice differs from itself by -1.8 %, ")
    assert "which excludes 0, but this run shows nothing" in broken.verdict


def test_main_arms_that_also_run_freely_are_shown_apart() -> None:
    found = rows()
    free = [replace(row, repeat=1, block=200) for row in by_hand(LEARNED, [1 / 60] * 2)]
    report = report_of(ARMS, found + free, roles=ROLES)
    assert set(report.free_running) == {"plain", "learned"}
    assert report.free_running["learned"].speedup_vs_plain == pytest.approx(2)
    assert report.arms["learned"].requests == GROUPS


def test_temperatures_and_their_texts_are_kept_apart() -> None:
    cold = rows()
    warm = [replace(row, temperature=1.0, token_hash="warm") for row in cold]
    report = report_of(ARMS, cold + warm, roles=ROLES)
    assert all(arm.text_equal for arm in report.arms.values())
    assert set(report.by_temperature) == {"0", "1"}
    assert report.slices is not None
    assert {row.b for row in report.slices.by_temperature["1"]} == {"best fixed", "second fixed", "plain"}
    assert report.comparisons[0].groups == GROUPS  # one question, whatever its temperatures


def test_an_arm_that_decoded_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="arm 'corner' has no observation"):
        arm_result(CORNER, rows()[:-2], "plain", ROLES, {})
