"""A cycle's decisions by number: names and numbers agree, and every question has an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import DraftView, LookupHint, QuestionKind, RootChoice
from decoding.decisions import PLAIN_ACTION, DecisionController, Decisions
from decoding.tree import DraftTree
from tests.traced_worlds import CHOICES, MERGED, PROMPTS, WORLDS, Case, session_of, text_of

SIZES = (1, 2, 5, 9)


@st.composite
def tables(draw: st.DrawFn) -> Decisions:
    choices = draw(st.lists(st.sampled_from(CHOICES), min_size=1, unique=True))
    sizes = draw(st.sets(st.integers(1, 12), min_size=1, max_size=6))
    return Decisions(tuple(choices), draw(st.integers(1, 8)), tuple(sorted(sizes)))


@st.composite
def trees(draw: st.DrawFn, least: int = 0) -> DraftTree:
    """Some drafted levels, then some that were joined."""
    tree = DraftTree(0)
    drafted, joined = draw(st.integers(least, 5)), draw(st.integers(0, 3))
    for level in range(drafted + joined):
        nodes = 1 if level >= drafted else draw(st.integers(1, 4))
        tree.add_level([1] * nodes, [tree.level(level)[0]] * nodes, [-1.0] * nodes, level >= drafted)
    return tree


HINTS = st.one_of(st.none(), st.builds(LookupHint, st.integers(0, 9), st.floats(0, 1), st.booleans()))


def view_of(tree: DraftTree, hint: LookupHint | None = None, offers: Sequence[int] = (0, 1)) -> DraftView:
    return DraftView(tree, 9, 20, 10, root_choices=tuple(map(RootChoice, offers)), lookup=hint)


def tree_of(drafted: int, nodes: int) -> DraftTree:
    """A tree of so many levels of one node, `nodes` in the last."""
    tree = DraftTree(0)
    for level in range(1, drafted + 1):
        count = nodes if level == drafted else 1
        tree.add_level(list(range(count)), [tree.level(level - 1)[0]] * count, [-1.0] * count)
    return tree


def test_names_are_in_the_order_of_the_numbers() -> None:
    table = Decisions((RootChoice.HEAD, RootChoice.ALL), 4, (2, 8))
    assert table.names == ("plain", "draft head", "draft all", "continue", "verify 2", "verify 8")
    assert (PLAIN_ACTION, table.continue_action) == (0, 3)


@given(tables())
def test_numbers_and_meanings_go_both_ways(table: Decisions) -> None:
    assert len(table.names) == len(set(table.names)) == len(table)
    for choice in (RootChoice.PLAIN, *table.choices):
        action = table.draft_action(choice)
        assert table.choice_of(action) == choice
        assert table.names[action] == ("draft " if choice else "") + choice.name.lower()
    assert table.names[table.continue_action] == "continue"
    for size in table.sizes:
        assert table.size_of(table.verify_action(size)) == size
        assert table.names[table.verify_action(size)] == f"verify {size}"
    assert Decisions.from_json(json.loads(json.dumps(table.to_json()))) == table


@given(tables(), st.integers(-2, 20))
def test_a_size_between_is_rounded_up(table: Decisions, size: int) -> None:
    found = table.size_of(table.verify_action(size))
    enough = [one for one in table.sizes if one >= size]
    assert found == (min(enough) if enough else max(table.sizes))


@given(
    table=tables(),
    hint=HINTS,
    offers=st.sets(st.sampled_from(CHOICES)),
    tree=trees(least=1),
    kind=st.sampled_from(["draft", "level", "size"]),
)
def test_every_question_has_an_answer_of_its_kind(
    table: Decisions,
    hint: LookupHint | None,
    offers: set[RootChoice],
    tree: DraftTree,
    kind: QuestionKind,
) -> None:
    """Against the rules, one at a time."""
    view = view_of(DraftTree(0) if kind == "draft" else tree, hint, [0, *offers])
    allowed = table.allowed(kind, view)
    assert len(allowed) == len(table)
    assert any(allowed)
    assert all(type(one) is bool for one in allowed)
    matched = hint is not None and hint.match_length > 0
    for action, name in enumerate(table.names):
        if kind == "draft":
            expected = name == "plain"
            if name.startswith("draft"):
                choice = table.choice_of(action)
                spare = (choice == RootChoice.LOOKUP or RootChoice.ALL in table.choices) and not matched
                expected = choice in offers and (
                    choice == RootChoice.ALL or not spare or len(table.choices) == 1
                )
        elif name == "continue":
            expected = kind == "level" and tree.depth < table.max_depth
        else:
            expected = name.startswith("verify")
            if expected and not (matched and kind == "level"):
                smaller = [size for size in table.sizes if size < table.size_of(action)]
                expected = not any(size >= tree.size for size in smaller)
        assert allowed[action] == expected, name


def test_what_is_allowed_by_hand() -> None:
    """One merged table, the questions of a cycle."""
    table, hint = Decisions(CHOICES, 2, SIZES), LookupHint(3, 0.5)

    def allowed(kind: QuestionKind, view: DraftView, of: Decisions = table) -> str:
        return ", ".join(name for name, yes in zip(of.names, of.allowed(kind, view), strict=True) if yes)

    root = DraftTree(0)
    assert allowed("draft", view_of(root, hint, range(4))) == "plain, draft all, draft lookup, draft head"
    assert allowed("draft", view_of(root, LookupHint(), range(4))) == "plain, draft all"
    assert allowed("draft", view_of(root, None)) == "plain, draft all"
    assert allowed("draft", view_of(root, hint)) == "plain, draft all"
    apart = replace(table, choices=(RootChoice.LOOKUP, RootChoice.HEAD))
    assert allowed("draft", view_of(root, hint, range(4)), apart) == "plain, draft lookup, draft head"
    assert allowed("draft", view_of(root, LookupHint(), range(4)), apart) == "plain, draft head"
    alone = replace(table, choices=(RootChoice.LOOKUP,))
    assert allowed("draft", view_of(root, LookupHint(), range(4)), alone) == "plain, draft lookup"
    assert allowed("level", view_of(tree_of(1, 3))) == "continue, verify 1, verify 2, verify 5"
    assert allowed("level", view_of(tree_of(1, 2))) == "continue, verify 1, verify 2"
    assert (
        allowed("level", view_of(tree_of(1, 2), hint)) == "continue, verify 1, verify 2, verify 5, verify 9"
    )
    assert allowed("level", view_of(tree_of(2, 2))) == "verify 1, verify 2, verify 5"
    assert allowed("size", view_of(tree_of(1, 6), hint)) == "verify 1, verify 2, verify 5, verify 9"
    assert allowed("size", view_of(tree_of(1, 5), hint)) == "verify 1, verify 2, verify 5"
    assert allowed("size", view_of(tree_of(1, 1))) == "verify 1"


@dataclass
class Scripted:
    """Draws among what is allowed, and notes what it was asked."""

    rng: np.random.Generator
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        assert any(allowed)
        action = int(self.rng.choice(np.flatnonzero(allowed)))
        self.asked.append((kind, view.tree.depth, action))
        return action


@given(
    name=st.sampled_from([*WORLDS, *MERGED]),
    prompt=st.integers(0, len(PROMPTS) - 1),
    max_depth=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_live_cycles_do_what_was_decided(name: str, prompt: int, max_depth: int, seed: int) -> None:
    """Whatever it is, the text stays; depth and size of each cycle are those of the answers."""
    case = Case(name, 1.0, 1, prompt)
    table = Decisions(CHOICES if name in MERGED else CHOICES[:1], max_depth, SIZES)
    decider, session = Scripted(np.random.default_rng(seed)), session_of(case)
    tokens = 0
    for record in session.run(DecisionController(table, decider)):
        asked, decider.asked = decider.asked, []
        tokens += record.emitted
        if not asked:
            assert record.verification_size == 0
            continue
        assert [kind for kind, _, _ in asked].count("draft") == 1
        assert asked[0][0] == "draft"
        # At the deepest there is nothing to continue: of the finished draft only its size is asked.
        assert all(kind != "level" or depth < max_depth for kind, depth, _ in asked)
        last = asked[-1][2]
        if last == PLAIN_ACTION:
            assert (len(asked), record.draft_depth, record.verification_size) == (1, 0, 0)
        elif len(asked) == 1 or last == table.continue_action:
            assert record.verification_size == 0  # nothing was found
        else:
            assert record.verification_size <= table.size_of(last)
            levels = [depth for _, depth, action in asked if action == table.continue_action]
            assert record.draft_depth <= max_depth
            assert levels == list(range(1, len(levels) + 1))
            if asked[-1][0] == "level":  # each question after one level more, the last stopped
                assert record.draft_depth == len(asked) - 1 == asked[-1][1]
    assert session.generated == text_of(case)
    assert tokens == len(text_of(case))


def test_a_size_of_the_cycle_before_is_forgotten() -> None:
    """A draft at the deepest is asked for its size, whatever the last one was cut to."""

    class InTurn:
        def __init__(self, actions: list[int]) -> None:
            self.actions = actions

        def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
            return self.actions.pop(0)

    table = Decisions((RootChoice.ALL,), 2, SIZES)
    decider = InTurn([1, table.verify_action(2), 1, table.continue_action, table.verify_action(9)])
    controller = DecisionController(table, decider)
    assert controller.wants_draft(view_of(DraftTree(0))) == RootChoice.ALL
    assert not controller.wants_level(view_of(tree_of(1, 4)))
    assert controller.verification_size(view_of(tree_of(1, 4))) == 2
    assert controller.wants_draft(view_of(DraftTree(0))) == RootChoice.ALL
    assert controller.wants_level(view_of(tree_of(1, 4)))
    assert not controller.wants_level(view_of(tree_of(2, 4)))
    assert controller.verification_size(view_of(tree_of(2, 4))) == 9
    assert decider.actions == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"choices": ()}, "choices are \\(\\), must be drafts, at least one, each once"),
        ({"choices": (RootChoice.PLAIN, RootChoice.ALL)}, "must be drafts"),
        ({"choices": (RootChoice.ALL, RootChoice.ALL)}, "each once"),
        ({"max_depth": 0}, "max_depth is 0, must be a whole number in 1..64"),
        ({"max_depth": 65}, "max_depth is 65"),
        ({"max_depth": 2.0}, "max_depth is 2.0"),
        ({"max_depth": True}, "max_depth is True"),
        ({"sizes": ()}, "sizes are \\(\\), must be whole numbers, strictly increasing, at least one"),
        ({"sizes": (2, 2)}, "strictly increasing"),
        ({"sizes": (3, 2)}, "strictly increasing"),
        ({"sizes": (1.0, 2)}, "whole numbers"),
        ({"sizes": (True, 2)}, "whole numbers"),
        ({"sizes": (0, 2)}, "sizes are \\(0, 2\\), must be in 1..1024"),
        ({"sizes": (1, 1025)}, "must be in 1..1024"),
    ],
)
def test_bad_tables_are_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    whole: dict[str, Any] = {"choices": (RootChoice.ALL,), "max_depth": 4, "sizes": (1, 2)}
    with pytest.raises(ValueError, match=message) as caught:
        Decisions(**{**whole, **changed})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"choices": ["all"], "max_depth": 4},
        {"choices": ["everything"], "max_depth": 4, "sizes": [1]},
        {"choices": ["all"], "max_depth": "4", "sizes": [1]},
        {"choices": ["all"], "max_depth": 4, "sizes": 1},
        {"choices": ["all"], "max_depth": 4, "sizes": ["1"]},
        {"choices": 1, "max_depth": 4, "sizes": [1]},
    ],
)
def test_json_of_something_else_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Decisions.from_json(raw)
