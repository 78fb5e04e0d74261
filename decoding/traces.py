"""Traces: at every position of a text the full-depth draft, and how far the text followed it.

Under the `coupled` rule the text is known without any draft, so that one pass over it tells what every depth
and size would have accepted there. A recording decodes the text plainly, runs the target over it once more
for its features, and drafts at each position with the drafter's own code.

Legend: R rows, F width of the target's fused features, V vocabulary (the drafter's in `OnPath`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch

from decoding.controller import LookupHint, RootChoice
from decoding.drafters.base import Drafter, DraftState
from decoding.drafters.beam import Beam
from decoding.drafters.merged import JoinedChain
from decoding.noise import NoiseStream
from decoding.target import TargetModel
from decoding.tree import DraftTree

# Rows of one forward over a known text.
_MOST_ROWS = 512
_NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class OnPath:
    """A parent of a level that the text followed to: its row of log survival, and the place of the text's
    next token in it.

    Attributes:
        depth: level of the next token, >= 1.
        survival_V: log c of the drafter's tokens after that parent.
        column: of the text's token in it; -1 if the drafter cannot draft it.
    """

    depth: int
    survival_V: torch.Tensor
    column: int

    @property
    def entropy(self) -> float:
        """Of the row, normalised, in nats."""
        return float(torch.special.entr(self.survival_V.float().softmax(dim=-1)).sum())

    @property
    def top_probability(self) -> float:
        """Survival of the row's best token."""
        return float(self.survival_V.max().exp())


@dataclass(frozen=True, slots=True)
class TargetRows:
    """What the target computed over a text.

    Attributes:
        features_RF: of every token but the last; None where it captures no layers.
        laws: (entropy, margin) of the law that drew each root, from the prompt's last token on.
    """

    features_RF: torch.Tensor | None
    laws: list[tuple[float, float]]


NO_LAW = (math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Chain:
    """What a merged drafter's lookup proposed at a root, and where it went.

    Attributes:
        tokens: one after the other, joined or not.
        log_survivals: of each after the one before, where no head is asked.
        nodes: in the recorded tree, of those that were joined; an element a level, from the first.
    """

    tokens: tuple[int, ...]
    log_survivals: tuple[float, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """One draft at one position of a text.

    Attributes:
        index: of the generated token that follows the root, 0 = the first after the prompt.
        context_length: committed tokens, the root included.
        tree: drafted there, to the recording's depth; what was joined to it included.
        path: nodes of the tree that the text followed, by depth.
        following: the text's tokens after the root, as many as the tree has levels; fewer at the end.
        root_entropy, root_margin: of the target's distribution that the root token was drawn from, at
            temperature 1: nats, and the difference of the best two log-probabilities; NaN for a first token.
        lookup: what a lookup said; None for a drafter that does not look up.
        on_path: by depth, where asked for; empty for a lookup.
        choice: what the tree was drafted with.
        chain: of a merged draft; None of all others.
    """

    index: int
    context_length: int
    tree: DraftTree
    path: tuple[int, ...]
    following: tuple[int, ...]
    root_entropy: float
    root_margin: float
    lookup: LookupHint | None
    on_path: tuple[OnPath, ...] = ()
    choice: RootChoice = RootChoice.ALL
    chain: Chain | None = None

    def tree_at(self, draft_depth: int, limit: int = _NO_LIMIT) -> DraftTree:
        """The tree that a live session has here once its draft of this depth is finished; `limit`: the most
        levels that its tokens left allow. A lookup alone has no depth to choose."""
        if self.choice == RootChoice.LOOKUP:
            return self.tree.upto(limit)
        tree = self.tree.upto(min(draft_depth, self.tree.depth, limit))
        if self.chain is not None:
            joined = min(tree.depth, len(self.chain.tokens))
            node = self.chain.nodes[joined - 1] if joined else 0
            rest = slice(joined, limit)
            for token, survival in zip(self.chain.tokens[rest], self.chain.log_survivals[rest], strict=True):
                (node,) = tree.add_level([token], [node], [tree.scores[node] + survival], joined=True)
        return tree

    def accepted(self, draft_depth: int, verification_size: int, limit: int = _NO_LIMIT) -> int:
        """Tokens that a draft of this depth, cut to this size, would have had accepted here."""
        tree = self.tree_at(draft_depth, limit)
        kept = set(tree.ranked()[:verification_size])
        return len(list(takewhile(kept.__contains__, followed(tree, self.following))))


def record_text(
    target: TargetModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    text_ids: Sequence[int],
    *,
    draft_depth: int,
    temperature: float,
    noise: NoiseStream,
    keep_rows: bool = False,
    choices: Sequence[RootChoice] = (RootChoice.ALL,),
    rows: TargetRows | None = None,
) -> Iterator[Position]:
    """Draft at every position of a text that `noise` and the target gave.

    Args:
        draft_depth: levels to draft.
        noise: of (seed, prompt): what the scores are computed with.
        keep_rows: fill `Position.on_path`.
        choices: what to draft with, a `Position` each, in this order.
        rows: the target's over this text, where somebody has them; None = compute them.

    Raises:
        ValueError: the target does not capture the layers that the drafter reads, or the drafter offers
            other choices.
    """
    if tuple(drafter.fused_layers) not in ((), target.fused_layers):
        raise ValueError(
            f"drafter {drafter.name} reads layers {drafter.fused_layers}, the target captures "
            f"{target.fused_layers}: call target.capture with the drafter's"
        )
    committed = [*prompt_ids, *text_ids]
    start = len(prompt_ids)
    state = drafter.start(noise, temperature, start)
    for choice in choices:
        if choice == RootChoice.PLAIN or choice not in state.root_choices:
            offered = ", ".join(one.name for one in state.root_choices if one != RootChoice.PLAIN)
            raise ValueError(f"drafter {drafter.name} does not draft with {choice!r}, it offers {offered}")
    rows = rows or _target_rows(target, committed[:-1], start - 1)
    features_RF = rows.features_RF
    state.ingest(committed[:1], None)
    state.ingest(committed[1:start], None if features_RF is None else features_RF[: start - 1])
    for place in range(start, len(committed)):
        known = committed[place:]
        entropy, margin = rows.laws[place - start]
        for choice in choices:
            tree, on_path = _draft(state, choice, draft_depth, known, keep_rows)
            yield Position(
                index=place - start,
                context_length=place,
                tree=tree,
                path=followed(tree, known),
                following=tuple(known[: tree.height]),
                root_entropy=entropy,
                root_margin=margin,
                lookup=state.hint(),
                on_path=on_path,
                choice=choice,
                chain=_chain(state),
            )
        state.ingest(known[:1], None if features_RF is None else features_RF[place - 1 : place])


def _chain(state: DraftState) -> Chain | None:
    joined: JoinedChain | None = getattr(state, "chain", None)
    if joined is None:
        return None
    return Chain(joined.tokens(), joined.log_survivals(), tuple(joined.nodes))


def followed(tree: DraftTree, following: Sequence[int]) -> tuple[int, ...]:
    """Nodes of the tree along these tokens, from the root down, as far as there are any."""
    children = {(parent, token): node for node, (parent, token) in _edges(tree)}
    node, path = 0, []
    for token in following:
        if (node, token) not in children:
            break
        node = children[node, token]
        path.append(node)
    return tuple(path)


def _edges(tree: DraftTree) -> Iterator[tuple[int, tuple[int, int]]]:
    # Backwards, so that of siblings with one token the first counts, as in verification.
    for node in range(tree.size, 0, -1):
        yield node, (tree.parents[node], tree.tokens[node])


def _draft(
    state: DraftState, choice: RootChoice, depth: int, following: Sequence[int], keep_rows: bool
) -> tuple[DraftTree, tuple[OnPath, ...]]:
    """A full-depth draft, and the rows of the parents on the text's path."""
    tree = state.begin()
    beam: Beam | None = getattr(state, "beam", None)
    rows: list[OnPath] = []
    limit = state.depth_limit()
    if limit > 0:
        state.choose(choice)
        deepest = 0 if choice == RootChoice.LOOKUP else min(depth, limit)
        while tree.depth < deepest:
            if not state.extend():
                break
            level = tree.depth
            if not keep_rows or beam is None or len(following) < level:
                continue
            path = (0, *followed(tree, following[: level - 1]))
            if len(path) == level and (row := beam.row_of(path[-1])) is not None:
                # A copy: a view would keep the rows of the whole level.
                rows.append(OnPath(level, row.clone().float(), beam.column(following[level - 1])))
        state.finish(limit)
    return tree, tuple(rows)


@torch.inference_mode()
def _target_rows(target: TargetModel, tokens: Sequence[int], first: int) -> TargetRows:
    """Of a known text: `first` is the position of the first root."""
    cache = target.new_cache()
    features, laws = [], []
    for start in range(0, len(tokens), _MOST_ROWS):
        output = target.forward(tokens[start : start + _MOST_ROWS], cache)
        if output.features_RF is not None:
            features.append(output.features_RF)
        # The prompt's own laws are asked of nobody, and a long prompt has many.
        laws += laws_of_rows(output.logits_RV[max(0, first - 1 - start) :])
    # The law that drew token i is the one after token i - 1; nothing drew a text's very first token.
    drawn = laws if first else [NO_LAW, *laws]
    return TargetRows(torch.cat(features) if features else None, drawn[: len(tokens) - first])


def laws_of_rows(logits_RV: torch.Tensor) -> list[tuple[float, float]]:
    """Of each row (entropy, margin) of the distribution at temperature 1, see `Position`."""
    log_probs_RV = logits_RV.float().log_softmax(dim=-1)
    entropy_R = torch.special.entr(log_probs_RV.exp()).sum(dim=-1)
    best_R2 = log_probs_RV.topk(2, dim=-1).values
    pairs = torch.stack([entropy_R, best_R2[:, 0] - best_R2[:, 1]], dim=1).tolist()
    return [(entropy, margin) for entropy, margin in pairs]
