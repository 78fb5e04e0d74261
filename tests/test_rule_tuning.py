"""Tuning finds the best where it is known, each rule within one budget; no rule changes a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from decoding.controller import DraftView, RootChoice
from decoding.replay import action_grid, constant_seconds, seconds_of_actions, text_table
from decoding.replay_session import ReplaySession
from decoding.sampling import Sampling
from decoding.session import Rule as Verification
from decoding.session import Session
from policies.baselines.depth_rule import DepthRule, Frame, check_whole
from policies.baselines.offers import Offers
from policies.baselines.rules import RULES, Rule, rule_called
from policies.baselines.tuning import BUDGET, Trial, Tuned, spent, tune
from policies.baselines.ucb import Ucb
from tests.test_replay_session import profile
from tests.test_replay_table import traced
from tests.traced_worlds import DEPTH, END_IDS, PROMPTS, TOKENS, Case, session_of, text_of, world

CASES = [Case("eagle3", temperature, 1, prompt) for temperature in (0.0, 1.0) for prompt in (1, 2, 3)]
MERGED_OFFERS = Offers.of((RootChoice.PLAIN, RootChoice.ALL, RootChoice.LOOKUP, RootChoice.HEAD), 6)


class Constant(DepthRule):
    """Always as deep."""

    def __init__(self, frame: Frame, depth: int) -> None:
        super().__init__(frame)
        check_whole("depth", depth, 1, 64)
        self.depth = depth

    def goes_on(self, view: DraftView) -> bool:
        return view.tree.depth < self.depth


CONSTANT = Rule("constant", "made up", "nothing", {"depth": (1, 2, 3, 4, 5)}, Constant)


def sessions(digest: float = 0.0, policy: float = 0.0) -> Iterator[ReplaySession]:
    costs = replace(profile(digest), policy=policy)
    for case in CASES:
        left = session_of(case).tokens_left
        yield ReplaySession(traced(case), costs, max_new_tokens=left, draft_depth=DEPTH)


def cost_of_constants(sizes: tuple[int, ...]) -> dict[tuple[int, int], float]:
    """Seconds of all texts by depth and size, from the table of the traces."""
    grid = action_grid((RootChoice.ALL,), range(1, DEPTH + 1), sizes)
    total = dict.fromkeys(((one.draft_depth, one.verification_size) for one in grid[1:]), 0.0)
    for case in CASES:
        table = text_table(traced(case), grid, session_of(case).tokens_left)
        free = replace(profile(), policy=0.0)
        seconds = constant_seconds(table, seconds_of_actions(table, free))
        for one, value in zip(grid[1:], seconds[1:], strict=True):
            total[one.draft_depth, one.verification_size] += float(value)
    return total


def test_the_best_constant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the table of the traces, another path to the same costs."""
    monkeypatch.setitem(RULES, "constant", CONSTANT)
    sizes = (1, 3, 8, 24)
    known = cost_of_constants(sizes)
    said: list[Trial] = []
    tuned = tune(CONSTANT, sessions, Offers(DEPTH, sizes=sizes), said.append)
    for trial in tuned.tried:
        place = trial.parameters["depth"], trial.parameters["size"]
        assert trial.seconds == pytest.approx(known[place])
    best = min(known, key=known.__getitem__)
    assert (tuned.parameters["depth"], tuned.parameters["size"]) == best
    assert tuned.seconds == min(one.seconds for one in tuned.tried) == pytest.approx(known[best])
    assert [one.seconds for one in tuned.tried] == sorted(one.seconds for one in said)
    assert said[0].parameters == {"depth": 1, "root": "all", "size": 8}
    assert tuned.tokens == sum(len(text_of(case)) for case in CASES)
    assert spent(tuned.factory(), sessions) == (tuned.seconds, tuned.tokens)


def test_of_equals_the_first_is_kept() -> None:
    """Nothing to decode: all cost nothing."""
    tuned = tune(RULES["svip"], list, MERGED_OFFERS)
    assert tuned.parameters == RULES["svip"].usual(MERGED_OFFERS)


@pytest.mark.parametrize("offers", [MERGED_OFFERS, Offers(3), Offers(1, sizes=(2,))], ids=str)
def test_every_rule_keeps_the_budget_and_its_default(offers: Offers) -> None:
    for name, rule in RULES.items():
        said: list[Trial] = []
        tuned = tune(rule, list, offers, said.append)
        assert 1 < len(tuned.tried) <= BUDGET
        assert said[0].parameters == rule.usual(offers) == rule.framed(rule.candidates[0], offers.frames[0])
        assert len({repr(one.parameters) for one in said}) == len(said)
        # All of its own parameters are tried somewhere.
        own = [{key: one.parameters[key] for key in rule.grid} for one in said]
        assert all(candidate in own for candidate in rule.candidates)
        assert (rule.name, tuned.rule) == (name, name)
        assert "\n" not in rule.source


def test_a_budget_is_never_exceeded() -> None:
    many = Rule("many", "made up", "nothing", {"depth": tuple(range(1, 65))}, Constant)
    assert len(tune(many, list, MERGED_OFFERS).tried) == BUDGET


def test_what_was_tried_is_json() -> None:
    tuned = tune(RULES["accepted-ema"], list, Offers(2))
    raw = json.loads(json.dumps(tuned.to_json(), allow_nan=False))
    assert raw["rule"] == "accepted-ema"
    assert raw["budget"] == BUDGET
    assert len(raw["tried"]) == len(tuned.tried)
    assert "sglang" in raw["source"].lower()
    again = RULES["accepted-ema"].make(raw["parameters"], Offers(2))
    assert again().frame == Frame("all", 8, 2)  # type: ignore[attr-defined]


def test_the_usual_frame_comes_first() -> None:
    assert MERGED_OFFERS.frames[0] == Frame("all", 8, 6)
    assert len(MERGED_OFFERS.frames) == 14
    assert Offers(2, sizes=(12, 16)).frames[0].size == 12
    assert Offers.of((RootChoice.PLAIN, RootChoice.ALL), 6).roots == ("all",)


def test_a_bandits_arms_are_a_fixed_grid() -> None:
    assert MERGED_OFFERS.arms[0] is None
    assert len(MERGED_OFFERS.arms) == 1 + 2 * 4 * 2
    assert Offers(3).arms[1:3] == (Frame("all", 4, 1), Frame("all", 8, 1))
    assert max(arm.max_depth for arm in Offers(3).arms if arm) == 3
    assert Offers(1, sizes=(2,)).arms == (None, Frame("all", 2, 1))


def test_each_run_has_a_bandit_of_its_own() -> None:
    rule = RULES["ucb"]
    first, second = (rule.make(rule.defaults, MERGED_OFFERS) for _ in range(2))
    mine, other = first(), first()
    assert isinstance(mine, Ucb)
    assert isinstance(other, Ucb)
    assert mine._bandit is other._bandit
    assert second()._bandit is not mine._bandit  # type: ignore[attr-defined]
    tuned = Tuned("ucb", MERGED_OFFERS, (Trial(rule.defaults, 1.0),), 1)
    assert tuned.factory()()._bandit is not tuned.factory()()._bandit  # type: ignore[attr-defined]


# --- texts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("name", RULES)
def test_no_rule_changes_a_text(name: str, verification: Verification) -> None:
    """Nor with any of its parameters; under `rejection` at temperature 0, where texts are equal too."""
    rule = RULES[name]
    for number, case in enumerate(
        Case(kind, temperature, 1, prompt)
        for kind in ("eagle3", "ngram", "composite-eagle3", "merged-causal")
        for temperature in ((0.0, 1.0) if verification == "coupled" else (0.0,))
        for prompt in (0, 1)
    ):
        here = world(case.world)
        if verification == "rejection" and case.world in ("ngram", "composite-eagle3"):
            continue  # their lookup was built without a vocabulary size: it has no distribution to draw from
        own = rule.candidates[7 * number % len(rule.candidates)]
        frame = MERGED_OFFERS.frames[5 * number % len(MERGED_OFFERS.frames)]
        session = Session(
            here.target,
            here.drafter,
            PROMPTS[case.prompt],
            max_new_tokens=TOKENS,
            end_ids=END_IDS,
            sampling=Sampling(case.temperature),
            seed=case.seed,
            rule=verification,
        )
        for _ in session.run(rule.make(rule.framed(own, frame), MERGED_OFFERS)()):
            pass
        assert session.generated == text_of(case)


# --- refusals ---------------------------------------------------------------------------------------------


def test_an_unknown_rule_is_refused_with_the_known() -> None:
    with pytest.raises(
        ValueError, match=r"there is no rule 'svp', known are hf-heuristic, .*, ucb$"
    ) as caught:
        rule_called("svp")
    assert "\n" not in str(caught.value)
    assert rule_called("svip") is RULES["svip"]


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("hf-heuristic", {"start": 0}, "start is 0, must be a whole number in 1..64"),
        ("hf-heuristic", {"up": 1.5}, "up is 1.5, must be a whole number"),
        ("hf-confidence", {"threshold": 1.1}, r"threshold is 1.1, must be a number in 0..1"),
        ("hf-confidence", {"adapted": 1}, "adapted is 1, must be True or False"),
        ("svip", {"threshold": float("nan")}, "threshold is nan, must be a number in 0..10"),
        ("svip", {"threshold": "low"}, "threshold is 'low', must be a number"),
        ("svip", {"size": 0}, "size is 0, must be a whole number in 1..1024"),
        ("svip", {"root": "tail"}, "root is 'tail', must be one of all, composite, head"),
        ("adaedl", {"target": -0.1}, "target is -0.1, must be a number in 0..1"),
        ("gammatune", {"smoothing": True}, "smoothing is True, must be a number in 0..1"),
        ("gammatune", {"widening": -1}, "widening is -1, must be a whole number in 0..64"),
        ("accepted-ema", {"steps": ()}, "must be strictly increasing, at least one"),
        ("accepted-ema", {"steps": (3, 3)}, "must be strictly increasing, at least one"),
        ("accepted-ema", {"steps": (0, 3)}, "a step is 0, must be a whole number in 1..64"),
        ("accepted-ema", {"interval": 0}, "interval is 0, must be a whole number in 1..1000000"),
        ("ucb", {"exploration": float("inf")}, "exploration is inf, must be a number in 0..1000"),
        ("ucb", {"root": "all"}, "rule ucb takes exploration, got exploration, root"),
        ("svip", {"h": 1}, "rule svip takes threshold, root, size, got h, root, size, threshold"),
    ],
)
def test_unusable_parameters_are_one_line(name: str, changed: dict[str, Any], said: str) -> None:
    rule = RULES[name]
    with pytest.raises(ValueError, match=said) as caught:
        rule.make({**rule.usual(MERGED_OFFERS), **changed}, MERGED_OFFERS)
    assert str(caught.value).startswith(f"rule {name}")
    assert "\n" not in str(caught.value)


def test_missing_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rule svip takes threshold, root, size, got nothing"):
        RULES["svip"].make({}, MERGED_OFFERS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_depth": 0}, "max_depth is 0, must be a whole number in 1..64"),
        ({"roots": ()}, "roots are .*, must be at least one, each once"),
        ({"roots": ("all", "all")}, "roots are .*, must be at least one, each once"),
        ({"sizes": (4, 2)}, "sizes are .*, must be strictly increasing"),
        ({"sizes": (0, 2)}, "size is 0, must be a whole number in 1..1024"),
    ],
)
def test_unusable_offers_are_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Offers(**({"max_depth": 3} | given))
