"""The law of traces: a trace predicts every cycle of a live session, whatever depth and size it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding import traces
from decoding.controller import DraftView, FixedController, PlainController
from decoding.drafters.eagle import EagleDrafter
from decoding.noise import NoiseStream
from decoding.traces import Position, record_text
from tests.fakes import tiny_eagle, tiny_target
from tests.traced_worlds import (
    CONTEXT,
    DEPTH,
    END_IDS,
    PROMPTS,
    WORLDS,
    Case,
    positions_of,
    session_of,
    text_of,
    world,
)

CASES = st.builds(
    Case,
    world=st.sampled_from(sorted(WORLDS)),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2),
    prompt=st.integers(0, len(PROMPTS) - 1),
)


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle is compared by."""

    context_length: int
    draft_depth: int
    verification_size: int
    accepted: int
    emitted: int


class Watching(FixedController):
    """Keeps what it saw last in each cycle: the tree's nodes and scores, and the lookup."""

    def __init__(self, draft_depth: int, verification_size: int) -> None:
        super().__init__(draft_depth, verification_size)
        self.seen: dict[int, tuple[list[int], list[int], list[float], object]] = {}

    def verification_size(self, view: DraftView) -> int:
        tree = view.tree
        self.seen[view.context_length] = (tree.tokens, tree.parents, tree.scores, view.lookup)
        return super().verification_size(view)


def live_cycles(case: Case, controller: FixedController) -> list[Cycle]:
    session = session_of(case)
    cycles = [
        Cycle(one.context_length, one.draft_depth, one.verification_size, one.accepted, one.emitted)
        for one in session.run(controller)
    ]
    assert session.generated == text_of(case)
    return cycles


def replayed_cycles(case: Case, depth: int, size: int) -> Iterator[Cycle]:
    """The same, jumping from position to position of the trace."""
    positions = positions_of(case)
    # As the session does: nothing is drafted that could not be emitted.
    left = session_of(case).tokens_left
    place = 0
    while place < len(positions):
        here = positions[place]
        clipped = min(depth, left - place - 1)
        levels = min(clipped, here.tree.height)
        verified = min(size, here.tree.level(levels).stop - 1)
        accepted = here.accepted(clipped, size)
        emitted = min(accepted + 1, len(positions) - place)
        yield Cycle(here.context_length, levels, verified, accepted, emitted)
        place += emitted


@given(case=CASES, depth=st.integers(0, DEPTH), size=st.integers(1, 24))
def test_a_trace_predicts_every_cycle(case: Case, depth: int, size: int) -> None:
    """Depth and size of the draft, what is accepted and what is emitted, from prompts of one token on, to an
    end token, the limit or the context's end."""
    controller = Watching(depth, size)
    live = live_cycles(case, controller)
    assert list(replayed_cycles(case, depth, size)) == live
    by_length = {one.context_length: one for one in positions_of(case)}
    for length, (tokens, parents, scores, lookup) in controller.seen.items():
        position = by_length[length]
        assert position.tree.tokens[: len(tokens)] == tokens
        assert position.tree.parents[: len(tokens)] == parents
        assert position.tree.scores[: len(tokens)] == pytest.approx(scores, abs=1e-5)
        assert position.lookup == lookup


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_the_worlds_are_worth_predicting(name: str) -> None:
    """Drafts are accepted in part; texts end in all three ways."""
    accepted, reasons = set(), set()
    for temperature in (0.0, 1.0):
        for seed in range(3):
            for prompt in range(len(PROMPTS)):
                case = Case(name, temperature, seed, prompt)
                accepted |= {one.accepted(DEPTH, 24) for one in positions_of(case)}
                text = text_of(case)
                full = len(PROMPTS[prompt]) + len(text) == CONTEXT
                reasons.add("context" if full else "end" if text[-1] in END_IDS else "limit")
    assert accepted >= {0, 1, 2}
    assert reasons == {"context", "end", "limit"}


def test_positions_say_where_they_are() -> None:
    for prompt, ids in enumerate(PROMPTS):
        case = Case("eagle3", 1.0, 1, prompt)
        text = text_of(case)
        committed = [*ids, *text]
        for index, one in enumerate(positions_of(case)):
            assert (one.index, one.context_length) == (index, len(ids) + index)
            assert one.tree.tokens[0] == committed[one.context_length - 1]
            assert one.following == tuple(text[index : index + one.tree.height])
        # A head has no features to draft from after a single token.
        heights = {one.tree.height for one in positions_of(case)[len(ids) == 1 :]}
        assert heights == {DEPTH}
        assert len(positions_of(case)[-1].following) == 1 - (len(ids) == len(committed) - 1 == 1)


# --- the target's own rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 512])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_root_laws_are_the_sessions_own(
    rows: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the text is cut into forwards, and features too: the trees are the same."""
    monkeypatch.setattr(traces, "_MOST_ROWS", rows)
    for prompt, ids in enumerate(PROMPTS):
        case = Case("eagle3", temperature, 0, prompt)
        laws = laws_of(case)
        recorded = list(record(case))
        assert len(recorded) == len(text_of(case))
        for one, usual in zip(recorded, positions_of(case), strict=True):
            assert one.tree.tokens == usual.tree.tokens
            if one.context_length == 1:
                assert math.isnan(one.root_entropy)
                assert math.isnan(one.root_margin)
                continue
            probs = laws[one.index - 1].softmax(dim=-1)
            best = probs.sort(descending=True).values
            assert one.root_entropy == pytest.approx(float(-(probs * probs.log()).sum()), abs=1e-5)
            assert one.root_margin == pytest.approx(float((best[0] / best[1]).log()), abs=1e-5)
        assert math.isnan(recorded[0].root_entropy) == (len(ids) == 1)


def laws_of(case: Case) -> dict[int, torch.Tensor]:
    """Logits that a plain session drew each generated token from; -1 = the prompt's last token."""
    session = session_of(case)
    laws: dict[int, torch.Tensor] = {}
    choose = session.chooser.choose

    def noted(
        logits_RV: torch.Tensor,
        indices: Sequence[int],
        contexts: Sequence[Sequence[int]] | None = None,
        best: Any = None,
    ) -> list[int]:
        laws.update(zip(indices, logits_RV, strict=True))
        return choose(logits_RV, indices, contexts, best)

    session.chooser.choose = noted  # type: ignore[method-assign]
    for _ in session.run(PlainController()):
        pass
    target, ids = world(case.world).target, PROMPTS[case.prompt]
    if len(ids) > 1:
        laws[-1] = target.forward(ids[:-1], target.new_cache()).logits_RV[-1]
    return laws


def test_a_law_that_forbids_tokens_has_an_entropy() -> None:
    target = tiny_target(layers=2)
    forbid = torch.zeros(len(target.embeddings.weight), dtype=torch.float64)  # type: ignore[arg-type]
    forbid[20:] = -torch.inf
    target.model.lm_head.bias = torch.nn.Parameter(forbid, requires_grad=False)
    case = world("ngram")
    positions = record_text(
        target, case.drafter, [5, 6, 7], [8, 9], draft_depth=2, temperature=1.0, noise=NoiseStream(0, [5])
    )
    assert all(0 < one.root_entropy <= math.log(20) for one in positions)


def test_a_target_that_captures_other_layers_is_refused() -> None:
    target = tiny_target(layers=4)
    drafter = tiny_eagle(target)
    target.capture(())
    with pytest.raises(ValueError, match=r"drafter eagle3 reads layers .*, the target captures \(\)"):
        list(
            record_text(
                target, drafter, [5, 6], [7], draft_depth=2, temperature=0, noise=NoiseStream(0, [5, 6])
            )
        )


# --- rows of the parents on the path ----------------------------------------------------------------------


def record(case: Case, keep_rows: bool = False) -> Iterator[Position]:
    here, ids = world(case.world), PROMPTS[case.prompt]
    return record_text(
        here.target,
        here.drafter,
        ids,
        text_of(case),
        draft_depth=DEPTH,
        temperature=case.temperature,
        noise=NoiseStream(case.seed, ids),
        keep_rows=keep_rows,
    )


@pytest.mark.parametrize("name", sorted(set(WORLDS) - {"ngram", "composite-eagle3"}))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_kept_rows_are_what_the_scores_were_made_of(name: str, temperature: float) -> None:
    """One a level while the text follows the tree, below whom the drafter drafted on; every drafted child of
    that parent is in it, with the text's token among them where the path goes on."""
    drafter = world(name).drafter
    ids_V = drafter.target_ids_V.tolist() if isinstance(drafter, EagleDrafter) else list(range(40))
    deepest = 0
    for prompt in range(len(PROMPTS)):
        for one in record(Case(name, temperature, 0, prompt), keep_rows=True):
            tree, path = one.tree, (0, *one.path)
            depths = [row.depth for row in one.on_path]
            assert depths == list(range(1, len(depths) + 1))
            deepest = max(deepest, *depths, 0)
            for row in one.on_path:
                parent, token = path[row.depth - 1], one.following[row.depth - 1]
                assert row.column == (ids_V.index(token) if token in ids_V else -1)
                assert len(row.survival_V) == len(ids_V)
                children = [node for node in range(1, tree.size + 1) if tree.parents[node] == parent]
                assert children
                for node in children:
                    survival = float(row.survival_V[ids_V.index(tree.tokens[node])])
                    assert tree.scores[node] - tree.scores[parent] == pytest.approx(
                        survival, rel=1e-6, abs=1e-9
                    )
                assert (len(path) > row.depth) == (token in [tree.tokens[node] for node in children])
                log_probs = row.survival_V.double().log_softmax(dim=-1)
                assert row.entropy == pytest.approx(float(-(log_probs.exp() * log_probs).sum()), abs=1e-5)
                assert row.top_probability == pytest.approx(max(row.survival_V.exp().tolist()))
            if len(depths) < min(tree.height, len(one.following), len(path)):
                # The text's path left the beam: nothing was drafted after it.
                assert path[len(depths)] not in tree.parents
    assert deepest >= 2


def test_no_rows_are_kept_of_a_lookup_or_unasked() -> None:
    assert all(one.on_path == () for one in record(Case("ngram", 0.0, 0, 1), keep_rows=True))
    assert all(one.on_path == () for one in record(Case("eagle3", 0.0, 0, 1)))


def test_a_kept_row_is_not_the_whole_level() -> None:
    for one in record(Case("causal", 0.0, 0, 1), keep_rows=True):
        for row in one.on_path:
            assert row.survival_V.untyped_storage().nbytes() == row.survival_V.nbytes
