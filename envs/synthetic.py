"""Made-up worlds whose best decisions are known: recorded texts of a chain drafter, and what they cost.

A token is accepted with one probability, the acceptance rate of the position's kind, whatever else happened.
A policy sees what it would see of a real draft: calibrated path scores, which tell the rate but not the
outcome. What the best policy reaches is in `synthetic_optimum.py`. The unit of time is a plain step.

Legend: T texts, W tokens of a text, K kinds, D levels, P positions, N nodes, A actions, S sizes, F features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import DecisionCosts, decision_costs
from decoding.decision_table import DecisionTable, Nodes, decision_table
from decoding.decisions import Decisions
from decoding.profile import Conditions, CostProfile
from decoding.trace_file import TracedText
from decoding.traces import Position
from decoding.tree import DraftTree

_PROMPT = 32
_IMPOSSIBLE = -1e3  # log of a rate of 0
_REJECTED = 0  # drafted tokens are 1, 2, ..
_CONDITIONS = Conditions("made up", "float32", "fast", 1, 0.0, "chain", 1)


@dataclass(frozen=True)
class World:
    """Texts of a chain drafter.

    Args:
        rates: acceptance rate of each kind of position.
        level: what a draft level costs, in plain steps.
        verification: of a forward over 1, 2, .. rows, the plain step's own 1 first; its length is one more
            than the greatest draft depth.
        sizes: `verification_size` values on offer.
        tokens: of a text.
        by_text: all positions of a text are of one kind, which its temperature tells before any draft;
            else each is drawn anew, and its kind shows from the first level on.
    """

    rates: tuple[Fraction, ...]
    level: Fraction
    verification: tuple[Fraction, ...]
    sizes: tuple[int, ...]
    tokens: int = 48
    by_text: bool = True

    def __post_init__(self) -> None:
        if not self.rates or not all(0 <= rate <= 1 for rate in self.rates):
            raise ValueError(f"rates are {self.rates}, must be in 0..1, at least one")
        if self.level < 0 or len(self.verification) < 2 or min(self.verification) <= 0:
            raise ValueError(
                f"costs are {self.level} and {self.verification}, must be >= 0, and > 0 for two rows or more"
            )
        if self.verification[0] != 1:
            raise ValueError(f"a plain step costs {self.verification[0]}, must be 1: it is the unit of time")
        if self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens}, must be at least 1")

    @property
    def max_depth(self) -> int:
        return len(self.verification) - 1

    @property
    def decisions(self) -> Decisions:
        return Decisions((RootChoice.ALL,), self.max_depth, self.sizes)

    @property
    def profile(self) -> CostProfile:
        """What everything costs; 1 second a plain step."""
        return CostProfile(
            fingerprints=dict.fromkeys(("target", "drafter", "tokenizer"), "made up"),
            conditions=_CONDITIONS,
            contexts=(1,),
            rows=tuple(range(1, len(self.verification) + 1)),
            start=(0.0,),
            levels={"head": ((float(self.level),),) * self.max_depth},
            digest_tokens=(1,),
            digest=(0.0,),
            selection=(0.0, 0.0, 0.0),
            verification=tuple((float(seconds),) for seconds in self.verification),
            verification_token=0.0,
            commit=(0.0, 0.0),
            policy=0.0,
        )

    def features(self, kind: int) -> CycleFeatures:
        """What is seen in texts of this kind."""
        temperature = float(kind) if self.by_text else 0.0
        return CycleFeatures(self.sizes, self.max_depth, temperature)

    def recorded(self, kinds_W: np.ndarray, accepted_W: np.ndarray) -> TracedText:
        """The trace of a text: at each place the kind, and how many drafted tokens the text follows."""
        positions = tuple(
            self._position(place, int(kind), int(accepted))
            for place, (kind, accepted) in enumerate(zip(kinds_W, accepted_W, strict=True))
        )
        return TracedText("made up", None, None, positions, ((),) * len(positions))

    def _position(self, place: int, kind: int, accepted: int) -> Position:
        rate, left = self.rates[kind], self.tokens - place
        log_rate = math.log(rate) if rate else _IMPOSSIBLE
        tree = DraftTree(1)
        for depth in range(1, self.max_depth + 1):
            tree.add_level([depth], [depth - 1], [depth * log_rate])
        kept = min(accepted, left)
        following = [*range(1, kept + 1), *[_REJECTED] * self.max_depth][: min(self.max_depth, left)]
        path = tuple(range(1, kept + 1))
        return Position(place, _PROMPT + place, tree, path, tuple(following), math.nan, math.nan, lookup=None)

    def draw(self, texts: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Kinds (T, W), by turns where they are the text's, and accepted tokens (T, W) of full drafts."""
        shape = (texts, self.tokens)
        if self.by_text:
            kinds_TW = np.broadcast_to(np.arange(texts)[:, None] % len(self.rates), shape)
        else:
            kinds_TW = rng.integers(len(self.rates), size=shape)
        rates_K = np.array([float(rate) for rate in self.rates])
        hits_TWD = rng.random((*shape, self.max_depth)) < rates_K[kinds_TW][..., None]
        return kinds_TW, hits_TWD.cumprod(axis=2).sum(axis=2)

    def table(self, texts: int, rng: np.random.Generator) -> DecisionTable:
        """So many texts; equal to `decision_table` of what `recorded` makes of them, but fast."""
        kinds_TW, accepted_TW = self.draw(texts, rng)
        nothing_W = np.zeros(self.tokens, dtype=np.int64)
        plans = [
            decision_table(
                [self.recorded(nothing_W + kind, nothing_W)],
                self.decisions,
                self.features(kind),
                self.tokens,
            )
            for kind in range(len(self.rates))
        ]
        kinds_P, places_P = kinds_TW.ravel(), np.tile(np.arange(self.tokens), texts)
        # Of what a position shows and allows only its kind and its place in the text matter.
        seen = {
            name: np.stack([getattr(plan, name) for plan in plans])[kinds_P, places_P]
            for name in ("context_P", "features_PNF", "allowed_PNA", "size_PNS", "levels_PN", "asked_P")
        }
        left_P = self.tokens - places_P
        emitted_PNS = np.minimum(accepted_TW.ravel()[:, None, None], seen["size_PNS"]) + 1
        nodes = len(Nodes.of(self.decisions))
        return DecisionTable(
            self.decisions,
            self.features(0),
            names=tuple(f"text {text}" for text in range(texts)),
            categories=tuple(f"kind {kind}" if self.by_text else "" for kind in kinds_TW[:, 0]),
            languages=("",) * texts,
            starts=np.arange(texts + 1) * self.tokens,
            emitted_PNS=np.minimum(emitted_PNS, left_P[:, None, None]).astype(np.int16),
            lookup_PN=np.zeros((len(kinds_P), nodes), dtype=bool),
            **seen,
        )

    def costs(self, table: DecisionTable) -> DecisionCosts:
        """Of its texts."""
        return decision_costs(table, self.profile)


def _flat(depth: int) -> tuple[Fraction, ...]:
    """A verification costs what a plain step does, for any draft."""
    return (Fraction(1),) * (depth + 1)


WORLDS: dict[str, World] = {
    # Leviathan et al., theorem 3.8: the best draft is of 3 tokens.
    "constant": World((Fraction(4, 5),), Fraction(1, 4), _flat(6), (2, 4, 6)),
    # Of 4 tokens in every other text, and none in the others.
    "regimes": World((Fraction(4, 5), Fraction(1, 10)), Fraction(1, 5), _flat(6), (3, 6)),
    # Five rows are still cheap, the sixth costs another forward and a half: a draft of 4.
    "cliff": World((Fraction(9, 10),), Fraction(1, 20), (*_flat(4), *[Fraction(5, 2)] * 4), (2, 4, 8)),
    "hopeless": World((Fraction(0),), Fraction(1, 10), _flat(4), (2, 4)),
    "free": World((Fraction(4, 5),), Fraction(0), _flat(6), (2, 6)),
}

# Half of the positions are easy and half hardly worth a draft. An easy one gives 3 tokens in 1.2 plain steps,
# 2.5 a step, and each further token takes 13/30 of a step: it lowers the ratio of this cycle, but is cheaper
# than the hard positions' tokens. The mean of ratios sees the first, the ratio of sums the second.
RATIOS = World(
    (Fraction(1), Fraction(1, 10)),
    Fraction(1, 10),
    (*_flat(2), *(1 + Fraction(extra, 3) for extra in range(1, 5))),
    (2, 6),
    by_text=False,
)
