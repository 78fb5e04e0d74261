"""The rules of other papers and decoders by name: sources, defaults, what their parameters are tuned over.

Parameters are JSON values by name: a rule's own, and for all but the bandit its frame's `root` and `size`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from decoding.controller import Controller
from policies.baselines.accepted_ema import AcceptedEma
from policies.baselines.adaedl import AdaEdl
from policies.baselines.depth_rule import DepthRule, Frame
from policies.baselines.entropy_stop import EntropyStop
from policies.baselines.gammatune import GammaTune
from policies.baselines.hf_confidence import HfConfidence
from policies.baselines.hf_heuristic import HfHeuristic
from policies.baselines.offers import Offers
from policies.baselines.ucb import Bandit, Ucb

Parameters = Mapping[str, Any]
# Makes the controller of one request.
Factory = Callable[[], Controller]
FRAME = ("root", "size")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: its key in `RULES`.
        source: authors, title, arXiv id, equation; one line.
        looks_at: what it decides by; one line.
        grid: values of each of its own parameters, the source's default first.
        kind: a `DepthRule`, made of a frame and the own parameters; None: the bandit.
    """

    name: str
    source: str
    looks_at: str
    grid: Mapping[str, tuple[Any, ...]]
    kind: Callable[..., DepthRule] | None

    @property
    def defaults(self) -> dict[str, Any]:
        """Its own parameters as the source has them."""
        return {name: values[0] for name, values in self.grid.items()}

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Every combination of its own parameters, the default first."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    def usual(self, offers: Offers) -> dict[str, Any]:
        """All parameters at their defaults."""
        return self.defaults if self.kind is None else self.framed(self.defaults, offers.frames[0])

    def framed(self, own: Parameters, frame: Frame) -> dict[str, Any]:
        """Own parameters with a frame's; the bandit has none."""
        return dict(own) if self.kind is None else {**own, "root": frame.root, "size": frame.size}

    def make(self, parameters: Parameters, offers: Offers) -> Factory:
        """Controllers with these parameters, a new one at every call. A bandit's share what they learn:
        whoever begins a run makes a new factory.

        ValueError, one line, if a parameter is missing, unknown, or unusable.
        """
        wanted = [*self.grid, *(() if self.kind is None else FRAME)]
        if set(parameters) != set(wanted):
            given = ", ".join(sorted(parameters)) or "nothing"
            raise ValueError(f"rule {self.name} takes {', '.join(wanted)}, got {given}")
        own = {name: parameters[name] for name in self.grid}
        try:
            if self.kind is None:
                bandit = Bandit(offers.arms, **own)
                return lambda: Ucb(bandit)
            kind, frame = self.kind, Frame(parameters["root"], parameters["size"], offers.max_depth)
            kind(frame, **own)  # a mistake shows before the first request
        except ValueError as error:
            raise ValueError(f"rule {self.name}: {error}") from None
        return lambda: kind(frame, **own)


def rule_called(name: str) -> Rule:
    """ValueError, one line that lists the known, if there is no such rule."""
    if name not in RULES:
        raise ValueError(f"there is no rule {name!r}, known are {', '.join(RULES)}")
    return RULES[name]


_ALL = (
    Rule(
        "hf-heuristic",
        "Hugging Face transformers 5.24, num_assistant_tokens_schedule heuristic_transient (+2 / -1)",
        "whether the last draft was accepted whole",
        {"start": (5, 2, 3), "up": (2, 1, 3), "down": (1, 2, 3)},
        HfHeuristic,
    ),
    Rule(
        "hf-confidence",
        "Hugging Face transformers 5.24, assistant_confidence_threshold, after Mamou et al., Dynamic"
        " Speculation Lookahead, arXiv 2405.04304",
        "survival of the level's best node given its parent",
        {"threshold": (0.4, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9), "adapted": (True, False)},
        HfConfidence,
    ),
    Rule(
        "svip",
        "Zhang et al., Draft Model Knows When to Stop (SVIP), arXiv 2411.18462: stop at sqrt(0.15 entropy)"
        " > threshold",
        "entropy of the level's best row",
        {"threshold": (0.3, 0.1, 0.15, 0.2, 0.25, 0.35, 0.4, 0.45, 0.5)},
        EntropyStop,
    ),
    Rule(
        "adaedl",
        "Agrawal, Jeon, Lee, AdaEDL, arXiv 2410.18351, algorithm 1: stop at 1 - sqrt(0.2 entropy) < lambda",
        "entropy of the level's best row, acceptance rate of the last drafts",
        {"start": (0.5, 0.3, 0.7, 0.9), "target": (0.9, 0.5, 0.7), "step": (0.01, 0.05, 0.2)},
        AdaEdl,
    ),
    Rule(
        "gammatune",
        "Gautam, Shrestha, Reddy, Token-Driven GammaTune, arXiv 2504.00030, algorithm 1",
        "accepted tokens of the last drafts; GammaTune+ (confidence > 0) also survival of the best node",
        {
            "start": (3, 2),
            "smoothing": (0.3, 0.1, 0.5),
            "widening": (2, 1),
            "confidence": (0.0, 0.3, 0.5),
        },
        GammaTune,
    ),
    Rule(
        "accepted-ema",
        "SGLang, AdaptiveSpeculativeParams (pull requests 21599 and 24055): EMA of the accepted length with"
        " hysteresis",
        "accepted tokens of the last drafts",
        {
            "steps": ((1, 3, 5, 7), (1, 2, 3, 4), (1, 2, 4, 6)),
            "smoothing": (0.2, 0.4),
            "interval": (5, 1),
            "warm_up": (10, 0),
        },
        AcceptedEma,
    ),
    Rule(
        "ucb",
        "Hou et al., BanditSpec (UCBSpec), arXiv 2505.15141, algorithm 4, equations 5 to 7",
        "tokens per second of the run's cycles so far",
        {"exploration": (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)},
        None,
    ),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}
