"""Choose a rule's parameters on validation texts, every rule with the same budget.

A candidate's score is the total seconds of all texts. At most `BUDGET` candidates are tried: every frame with
the source's default parameters, then every combination of the rule's own parameters in the best frame, then
with the best of these the other frames, those first that were fast before. The default is the first of all,
and of equals the first is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from decoding.replay_session import ReplaySession
from decoding.session import Session
from policies.baselines.offers import Offers
from policies.baselines.rules import RULES, Factory, Rule

BUDGET = 60

# The texts anew, each at its first token, in the same order at every call.
Sessions = Callable[[], Iterable[Session | ReplaySession]]


@dataclass(frozen=True, slots=True)
class Trial:
    """What was tried, and the seconds of all texts."""

    parameters: dict[str, Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was chosen.

    Attributes:
        rule: its name.
        offers: what constants were chosen from.
        tried: the fastest first; of equals the one that was tried first.
        tokens: of all texts.
    """

    rule: str
    offers: Offers
    tried: tuple[Trial, ...]
    tokens: int

    @property
    def parameters(self) -> dict[str, Any]:
        """The chosen ones."""
        return self.tried[0].parameters

    @property
    def seconds(self) -> float:
        """Of all texts."""
        return self.tried[0].seconds

    def factory(self) -> Factory:
        """Controllers of the chosen parameters, for one run."""
        return RULES[self.rule].make(self.parameters, self.offers)

    def to_json(self) -> dict[str, Any]:
        """For reports."""
        return {
            "rule": self.rule,
            "source": RULES[self.rule].source,
            "parameters": self.parameters,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "budget": BUDGET,
            "tried": [{"parameters": one.parameters, "seconds": one.seconds} for one in self.tried],
        }


def tune(
    rule: Rule, sessions: Sessions, offers: Offers, on_trial: Callable[[Trial], None] | None = None
) -> Tuned:
    """The best parameters of one rule on these texts.

    Args:
        on_trial: called after every candidate.
    """
    trials: dict[str, Trial] = {}
    tokens = 0

    def attempt(parameters: dict[str, Any]) -> None:
        nonlocal tokens
        if repr(parameters) in trials or len(trials) >= BUDGET:
            return
        seconds, tokens = spent(rule.make(parameters, offers), sessions)
        trials[repr(parameters)] = Trial(parameters, seconds)
        if on_trial is not None:
            on_trial(trials[repr(parameters)])

    def best() -> dict[str, Any]:
        return min(trials.values(), key=lambda one: one.seconds).parameters

    for parameters in _framed(rule, rule.defaults, offers):
        attempt(parameters)
    framed = sorted(trials.values(), key=lambda one: one.seconds)
    frame = {name: value for name, value in best().items() if name not in rule.grid}
    for own in rule.candidates:
        attempt({**own, **frame})
    chosen = {name: best()[name] for name in rule.grid}
    for trial in framed:
        attempt({**trial.parameters, **chosen})
    return Tuned(rule.name, offers, tuple(sorted(trials.values(), key=lambda one: one.seconds)), tokens)


def spent(factory: Factory, sessions: Sessions) -> tuple[float, int]:
    """Seconds and tokens of all texts, each with a controller of its own."""
    seconds, tokens = 0.0, 0
    for session in sessions():
        for record in session.run(factory()):
            seconds += record.seconds.total
            tokens += record.emitted
    return seconds, tokens


def _framed(rule: Rule, own: dict[str, Any], offers: Offers) -> Iterator[dict[str, Any]]:
    for frame in offers.frames:
        yield rule.framed(own, frame)
