"""What a report says of replay, by hand; and the batch twin of an exported policy's decisions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands.replayed_arms import batch_outputs, decide_of
from decoding.controller import RootChoice
from decoding.decisions import PLAIN_ACTION
from decoding.exported import Network
from decoding.exported_cycle import ExportedCycle
from decoding.setting import Setting
from evaluation.protocol import Observation
from evaluation.replayed import ReplayedArm, Texts, edge_warnings, kind_of, replay_section
from evaluation.schema import Replay
from evaluation.slices import shared_questions
from evaluation.statistics import group_log_ratios
from tests.cycle_world import exported
from tests.made_up import PLAIN, by_hand

PLAIN_SETTING = Setting(RootChoice.PLAIN, 0, 0)
SMALL, LARGE = Setting(RootChoice.ALL, 1, 2), Setting(RootChoice.ALL, 3, 8)
LOOKUP = Setting(RootChoice.LOOKUP, 0, 8)


def texts(count: int = 40) -> Texts:
    """Two categories, a question in two temperatures each."""
    return Texts(
        tuple(f"q{at // 2}" for at in range(count)),
        tuple(f"q{at // 2}" for at in range(count)),
        tuple("chat" if at < count // 2 else "" for at in range(count)),
        np.array([float(at % 2) for at in range(count)]),
        np.full(count, 10),
    )


def section(learned_T: np.ndarray, grid: dict[Setting, np.ndarray]) -> Replay:
    arms = [
        ReplayedArm("plain", "plain", grid[PLAIN_SETTING]),
        ReplayedArm("best fixed", "fixed", grid[SMALL], tuned="all 1x2"),
        ReplayedArm("learned", "learned", learned_T),
    ]
    return replay_section(
        texts(), arms, grid, best=[SMALL, LARGE], warnings=["w"], rng=np.random.default_rng(0),
        confidence=0.95, drafter="merged:x", lookup_depth=6,
    )  # fmt: skip


def test_the_section_by_hand() -> None:
    noise = np.random.default_rng(1)
    plain = np.exp(noise.normal(0, 0.2, 40))
    first = np.arange(40) < 20
    grid = {PLAIN_SETTING: plain, SMALL: plain / 1.5, LARGE: plain / np.where(first, 1.2, 2.5)}
    learned = plain / np.exp(noise.normal(math.log(1.6), 0.05, 40))
    found = section(learned, grid)
    assert found.arms["plain"].speedup_vs_plain == 1
    assert found.arms["best fixed"].speedup_vs_plain == pytest.approx(1.5)
    assert found.arms["plain"].tokens_per_second == pytest.approx(400 / plain.sum())
    over = found.arms["best fixed"].learned_over_it
    assert over is not None
    assert over.ratio_of_sums == pytest.approx(grid[SMALL].sum() / learned.sum())
    assert over.groups == 20
    assert over.claimed
    assert found.arms["learned"].learned_over_it is None
    assert (found.texts, found.tokens) == (40, 400)
    assert found.best_by_validation == ["all 1x2", "all 3x8"]
    assert found.best_in_hindsight == "all 3x8"
    assert found.best_by_category == {"(none)": "all 3x8", "chat": "all 1x2"}
    assert [(one.drafter, one.lookup_depth) for one in found.grid] == [
        ("plain", None),
        ("merged", 6),
        ("merged", 6),
    ]


def test_lower_bounds_hold_for_all_categories_together() -> None:
    """The bound of each of k categories is at 1 - .05 / k, one-sided: lower than the interval's own."""
    noise = np.random.default_rng(2)
    plain = np.ones(40)
    learned = np.repeat(np.exp(noise.normal(0, 0.05, 20)), 2)
    found = section(learned, {PLAIN_SETTING: plain, SMALL: plain, LARGE: plain})
    chat = -np.log(learned[:20:2])
    ratio, low = found.not_slower["chat"]
    assert ratio == pytest.approx(math.exp(chat.mean()))
    spread = chat.std(ddof=1) / math.sqrt(10)
    assert (chat.mean() - math.log(low)) / spread == pytest.approx(2.262, rel=0.2)  # t(9) at 1 - .05 / 2
    assert set(found.not_slower) == {"chat", "(none)"}


def test_an_edge_is_warned_of() -> None:
    every = [
        PLAIN_SETTING,
        SMALL,
        LARGE,
        LOOKUP,
        Setting(RootChoice.ALL, 3, 2),
        Setting(RootChoice.ALL, 1, 8),
    ]
    assert edge_warnings(SMALL, every) == []
    assert [one.rpartition(" ")[2] for one in edge_warnings(LARGE, every)] == [
        "draft_depth",
        "verification_size",
    ]
    assert edge_warnings(LOOKUP, every) == []  # the only one of its kind
    composite = replace(LARGE, composite=True)
    assert edge_warnings(composite, [*every, composite]) == []


def test_kinds() -> None:
    assert kind_of(PLAIN_SETTING, "merged") == "plain"
    assert kind_of(LOOKUP, "merged:x") == "lookup"
    assert kind_of(replace(LARGE, composite=True), "merged") == "composite"
    assert kind_of(Setting(RootChoice.HEAD, 1, 2), "merged") == "head"
    assert kind_of(LARGE, "merged") == "merged"
    assert kind_of(LARGE, "eagle") == "eagle"


def rows_with(pairs: list[tuple[str, str]]) -> list[Observation]:
    rows = by_hand(PLAIN, [0.1] * len(pairs))
    return [
        replace(row, group=group, language=language)
        for row, (group, language) in zip(rows, pairs, strict=True)
    ]


def test_questions_that_every_language_has() -> None:
    pairs = [("a", "en"), ("a", "it"), ("b", "en"), ("c", "en"), ("c", "it"), ("d", "zh"), ("d", "it")]
    assert shared_questions(rows_with(pairs)) == []  # en, it and zh: nobody has all three
    kept = shared_questions(rows_with(pairs[:5]))
    assert [row.group for row in kept] == ["a", "a", "c", "c"]
    assert shared_questions(rows_with([("a", "en"), ("b", "it")])) == []


def test_temperatures_of_a_question_are_one_group_and_must_be_the_same() -> None:
    rows = rows_with([("a", "en"), ("b", "en")])
    warm = [replace(row, temperature=1.0) for row in rows]
    other = [replace(row, arm="other") for row in [*rows, *warm]]
    assert len(group_log_ratios("plain", "other", [*rows, *warm, *other])) == 2
    with pytest.raises(ValueError, match="cannot be paired: they decoded 2 and 4 requests, 2 of them"):
        group_log_ratios("plain", "other", [*rows, *other])


def test_many_decisions_at_once_are_those_of_the_exported_policy(tmp_path: Path) -> None:
    policy = ExportedCycle.load(exported(tmp_path / "p"))
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, len(policy.info.features.names))).astype(np.float32)
    actions = len(policy.info.decisions)
    allowed = rng.random((200, actions)) < 0.6
    allowed[:, PLAIN_ACTION] |= ~allowed.any(axis=1)
    said = decide_of(policy)(features, allowed)
    outputs = np.stack([policy.network.outputs(one) for one in features])
    np.testing.assert_allclose(batch_outputs(policy.network, features), outputs, rtol=1e-4, atol=1e-5)
    for row in range(200):
        best = max(np.flatnonzero(allowed[row]), key=lambda action: (outputs[row, action], -action))
        assert said[row] == best


def test_what_a_policy_cannot_compute_its_constant_decides(tmp_path: Path) -> None:
    policy = ExportedCycle.load(exported(tmp_path / "p"))
    (weight, bias), *others = policy.network.layers
    broken = np.array(bias)
    broken[:] = np.nan
    policy.network = Network([(weight, broken), *others], policy.network.activation)
    features = np.zeros((3, len(policy.info.features.names)), dtype=np.float32)
    allowed = np.ones((3, len(policy.info.decisions)), dtype=bool)
    said = decide_of(policy)(features, allowed)
    assert (said == policy.info.decisions.draft_action(policy.info.fallback.choice)).all()
