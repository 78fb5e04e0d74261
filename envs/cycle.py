"""Decode for real with one agent that takes every decision of a cycle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from decoding.controller import Question
from decoding.cycle_features import CycleFeatures
from decoding.decisions import Decisions
from decoding.records import CycleRecord
from decoding.session import Cycle
from envs.live import cycle_info
from envs.outliers import Winsoriser
from envs.rewards import Episode, Step, episode_of, step_reward

_MOST_UNASKED_REQUESTS = 1000


class Request(Protocol):
    """A session, or a recorded text's twin of one."""

    @property
    def finished(self) -> bool: ...
    def cycle(self) -> Cycle: ...


OpenRequest = Callable[[np.random.Generator], Request]


class CycleEnv(gymnasium.Env[np.ndarray, np.int64]):
    """Every decision of every cycle; an episode is a request, or a cycle: then `reset` goes on with the
    request's next one.

    Its twin on recorded texts, with predicted seconds, is `envs.replay.ReplayVecEnv`.

    ## Action space: Discrete(2 + C + S)

    With C = drafts offered, S = verification sizes; see `decoding.decisions.Decisions`. Not every action
    answers every question: `action_masks()` says which do, and `info["action_mask"]` has the same.

    | action | asked | means |
    |---|---|---|
    | 0 | at the root | a plain step |
    | 1 .. C | at the root | begin the draft `choices[i - 1]` |
    | C + 1 | after a level | one level more |
    | C + 2 .. C + 1 + S | after a level, of a finished draft | verify the `sizes[i - C - 2]` best nodes |

    ## Observation space: Box((15 + S + costs,), float32)

    With D = `max_depth`; p is e^(path score), how likely a node is to be on the accepted path.

    | entry | low | high | what |
    |---|---|---|---|
    | at_root | 0 | 1 | 1 before any draft |
    | lookup_alone | 0 | 1 | 1 of the draft of a lookup alone |
    | draft_depth | 0 | 1 | levels drafted / D |
    | level_best, level_second | 0 | 1 | largest p of the last level |
    | level_sum | 0 | 1 | sum of the last level's p: tokens that it is expected to add |
    | level_margin | 0 | 1 | difference of the best two path scores / 5 |
    | expected_s, for each size s | 0 | D | sum of the s largest p: tokens that s nodes should have accepted |
    | match_length | 0 | 1 | log2(1 + the lookup's match) / 5 |
    | match_share | 0 | 1 | weight of the matches behind the lookup's first token |
    | agrees | -1 | 1 | 1: the head's best token is the lookup's, -1: it is not, 0: unknown |
    | tokens_left | 0 | 1 | tokens left in the request / (2D + 2) |
    | log2_context_length | -2 | 4 | (log2 of the committed tokens - 8) / 4 |
    | temperature | 0 | 2 | of the request's law |
    | cost_i | 0 | 8 | the machine's cost ratios, if there are any |
    | emitted_last, emitted_mean_4 | 0 | 1 | tokens of the last cycle, of the last 4 on average, / (D + 1) |

    ## Reward

    By name, of `envs.rewards.STEP_REWARDS`, from the seconds that the session took, without the agent's own
    time. At a cycle's end `info` holds `tokens_per_second`, `emitted`, `draft_depth`, `verification_size`,
    `accepted` and `seconds` by phase.

    Args:
        open_request: opens the next request, drawn with the generator it is given (`np_random`).
        decisions, features: of the same sizes and depth.
        reward: a name of `STEP_REWARDS`.
        rate: tokens per second that rewards are measured against.
        clock: seconds now, the device synchronised; for tests another one.
        outliers: holds the rewards' seconds to what is usual; None: as they were measured.
        episode: None = what the reward is meant for, see `envs.rewards.episode_of`.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        open_request: OpenRequest,
        decisions: Decisions,
        features: CycleFeatures,
        clock: Callable[[], float],
        reward: str = "time_saved",
        rate: float = 1.0,
        outliers: Winsoriser | None = None,
        episode: Episode | None = None,
    ) -> None:
        episode = episode_of(reward) if episode is None else episode
        if episode not in ("request", "cycle"):
            raise ValueError(f"episode is {episode!r}, must be request or cycle")
        if (features.sizes, features.max_depth) != (decisions.sizes, decisions.max_depth):
            raise ValueError(
                f"the features are of {features.sizes} and {features.max_depth}, not {decisions}"
            )
        if not (np.isfinite(rate) and rate > 0):
            raise ValueError(f"rate is {rate} tokens per second, must be finite and above 0")
        self.observation_space = spaces.Box(features.low, features.high, dtype=np.float32)
        self.action_space = spaces.Discrete(len(decisions))
        self._open, self._clock = open_request, clock
        self._decisions, self._features = decisions, features
        self._reward, self._rate = step_reward(reward), rate
        self._request: Request | None = None
        self._cycle: Cycle | None = None
        self._question: Question | None = None
        self._next: Question | None = None  # the first of the next cycle, where that is the next episode
        self._by_cycle = episode == "cycle"
        self._charged = 0.0
        self._outliers = outliers

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Open a request and go to its first question; requests that ask nothing are decoded and left."""
        super().reset(seed=seed)
        self._charged = 0.0  # a request left in the middle of a draft owes nothing any more
        if self._next is not None and seed is None:
            self._question, self._next = self._next, None
            return self._observe(), {"action_mask": self.action_masks()}
        self._next = None
        for _ in range(_MOST_UNASKED_REQUESTS):
            self._request = self._open(self.np_random)
            if self._to_question([]):
                return self._observe(), {"action_mask": self.action_masks()}
        raise ValueError(
            f"{_MOST_UNASKED_REQUESTS} requests asked nothing: give requests of more than one token"
        )

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Answer the pending question."""
        if self._question is None:
            raise ValueError("step was called before reset, or after the end of an episode: call reset")
        if not (self.action_space.contains(action) and self.action_masks()[action]):
            raise ValueError(f"action is {action!r}, allowed are {np.flatnonzero(self.action_masks())}")
        seen, records = self._observe(), []
        # A first level, which digests, takes longer than the next: each kind is judged by its own.
        kind = f"{self._decisions.names[action]} after {self._question.view.tree.depth}"
        started, before = self._clock(), self._charged
        record = self._answer(int(action))
        if record is None:
            self._charged += self._usual(kind, self._clock() - started)
            step = Step(self._charged - before, self._charged, 0)
            return self._observe(), self._worth(step), False, False, {"action_mask": self.action_masks()}
        records.append(record)
        self._charged = 0.0
        asked = self._to_question(records)
        ending = self._usual(f"{record.draft_depth}x{record.verification_size}", record.seconds.work)
        rest = sum(one.seconds.work for one in records[1:])
        step = Step(ending + rest - before, ending + rest, sum(one.emitted for one in records))
        if asked and self._by_cycle:
            asked, self._next, self._question = False, self._question, None
        info = {**cycle_info(record), "action_mask": self.action_masks()}
        return self._observe() if asked else seen, self._worth(step), not asked, False, info

    def action_masks(self) -> np.ndarray:
        """bool (actions): which answer the pending question; at an episode's end all."""
        if self._question is None:
            return np.ones(len(self._decisions), dtype=bool)
        return np.array(self._decisions.allowed(self._question.kind, self._question.view))

    def close(self) -> None:
        """Drop the request."""
        self._request = self._cycle = self._question = self._next = None

    def _usual(self, kind: str, seconds: float) -> float:
        return seconds if self._outliers is None else self._outliers(kind, seconds)

    def _worth(self, step: Step) -> float:
        return float(self._reward(step, self._rate))

    def _observe(self) -> np.ndarray:
        assert self._question is not None
        return self._features(self._question.view)

    def _to_question(self, records: list[CycleRecord]) -> bool:
        """Begin cycles until one asks; the records of those that did not are added. False at the end."""
        assert self._request is not None
        self._question = None
        while not self._request.finished:
            self._cycle = self._request.cycle()
            record = self._drive(None)
            if record is None:
                return True
            records.append(record)
        return False

    def _answer(self, action: int) -> CycleRecord | None:
        """The finished cycle's record, or None at its next question."""
        decisions, question = self._decisions, self._question
        assert question is not None
        if question.kind == "draft":
            return self._drive(int(decisions.choice_of(action)))
        if action == decisions.continue_action:
            return self._drive(1)
        if question.kind == "level":
            record = self._drive(0)
            if record is not None:
                return record
        return self._drive(decisions.size_of(action))

    def _drive(self, reply: int | None) -> CycleRecord | None:
        """To the next question that is the agent's, or to the cycle's end."""
        assert self._cycle is not None
        while True:
            try:
                question = next(self._cycle) if reply is None else self._cycle.send(reply)
            except StopIteration as done:
                record: CycleRecord = done.value
                self._question = None
                return record
            if question.kind != "level" or question.view.tree.depth < self._decisions.max_depth:
                self._question = question
                return None
            reply = 0  # as deep as it may be: what is asked next is the size
