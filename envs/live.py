"""Decode for real, learn from the clock: one half of the controller is the agent, the other its partner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from decoding.controller import Controller, FixedController, Question, answer
from decoding.features import DepthFeatures, SizeFeatures
from decoding.records import CycleRecord
from decoding.replay_session import ReplaySession
from decoding.session import Cycle, Session
from envs.partners import UniformDepth
from envs.rewards import reward_by_name

OpenSession = Callable[[np.random.Generator], Session | ReplaySession]
# Whole requests' worth of cycles: past them, something keeps the agent from ever being asked.
_MOST_UNASKED_CYCLES = 1000


class LiveEnv(gymnasium.Env[np.ndarray, np.int64]):
    """What both environments share: they drive `Session.cycle()`, the loop that decoding runs too, or that of
    its twin, a replayed text.

    An episode is one cycle, and `reset` goes on with the request's next cycle, so a request is a series of
    episodes. The partner answers what the agent is not asked.

    Args:
        open_session: opens the next request, drawn with the generator it is given (`np_random`).
        partner: the other half of the controller.
        features: what the agent sees.
        reward: name of a function in `envs.rewards`.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        open_session: OpenSession,
        partner: Controller,
        features: DepthFeatures | SizeFeatures,
        reward: str,
    ) -> None:
        self.observation_space = spaces.Box(features.low, features.high, dtype=np.float32)
        self._open_session = open_session
        self._partner = partner
        self._features = features
        self._reward = reward_by_name(reward)
        self._session: Session | ReplaySession | None = None
        self._cycle: Cycle | None = None
        self._question: Question | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Go on to the next cycle in which the agent is asked; with a seed, or the option `new_request`, to
        the first of a new request.

        An unfinished cycle is dropped: until it commits, a cycle leaves no trace in the session.

        Returns:
            The observation; an info whose `unasked` lists the infos of cycles that asked the agent nothing.
        """
        super().reset(seed=seed)
        if seed is not None or (options or {}).get("new_request"):
            self._session = None
        unasked: list[dict[str, Any]] = []
        while len(unasked) < _MOST_UNASKED_CYCLES:
            if self._session is None or self._session.finished:
                self._session = self._open_session(self.np_random)
            if isinstance(self._partner, UniformDepth):
                self._partner.begin_cycle(self.np_random)
            self._cycle = self._session.cycle()
            record = self._run(None)
            if record is None:
                return self._observe(), {"unasked": unasked}
            unasked.append(cycle_info(record))
        raise ValueError(
            f"the agent was asked nothing in {_MOST_UNASKED_CYCLES} cycles: "
            "give a partner that drafts, and requests of more than one token"
        )

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Answer the pending question. The episode ends, and the reward comes, with the cycle."""
        if self._question is None:
            raise ValueError("step was called before reset, or after the end of an episode: call reset")
        if not self.action_space.contains(action):
            raise ValueError(f"action is {action!r}, must be in {self.action_space}")
        last_seen = self._observe()
        record = self._run(self._reply(int(action)))
        if record is None:
            return self._observe(), 0.0, False, False, {}
        return last_seen, self._reward(record), True, False, cycle_info(record)

    def close(self) -> None:
        """Drop the request."""
        self._session = self._cycle = self._question = None

    def _asks_agent(self, question: Question) -> bool:
        raise NotImplementedError

    def _partner_reply(self, question: Question) -> int:
        return answer(self._partner, question)

    def _reply(self, action: int) -> int:
        """What the agent's action means to the session."""
        raise NotImplementedError

    def _run(self, reply: int | None) -> CycleRecord | None:
        """Drive the cycle to the agent's next question (None) or to its end (the record)."""
        assert self._cycle is not None
        self._question = None
        while True:
            try:
                question = next(self._cycle) if reply is None else self._cycle.send(reply)
            except StopIteration as done:
                record: CycleRecord = done.value
                return record
            if self._asks_agent(question):
                self._question = question
                return None
            reply = self._partner_reply(question)

    def _observe(self) -> np.ndarray:
        assert self._question is not None
        return self._features(self._question.view)


def cycle_info(record: CycleRecord) -> dict[str, Any]:
    """Plain numbers: vectorised environments copy infos deeply at every step."""
    seconds = record.seconds
    return {
        "tokens_per_second": record.emitted / seconds.work,
        "emitted": record.emitted,
        "draft_depth": record.draft_depth,
        "verification_size": record.verification_size,
        "accepted": record.accepted,
        "seconds": {
            "draft": seconds.draft,
            "select": seconds.select,
            "verify": seconds.verify,
            "commit": seconds.commit,
            "policy": seconds.policy,
        },
    }


class DepthEnv(LiveEnv):
    """How deep to draft: asked before any draft work and after every level, up to `max_depth`.

    With W = `beam_width` and D = `max_depth`; scores are held to -20 and above, absent ones read
    as -20 (at the root all of them).

    ## Action space: Discrete(2)

    | action | at the root | after a level |
    |---|---|---|
    | 0 | plain step | stop |
    | 1 | draft | one level more |

    ## Observation space: Box((W^2 + 5,), float32)

    | entry | low | high | what |
    |---|---|---|---|
    | level_score_0 .. level_score_{W^2-1} | -2 | 0 | the last level's path scores / 10, best first |
    | draft_depth | 0 | 1 | levels drafted / D |
    | log2_context_length | -2 | 4 | (log2 of the committed tokens - 8) / 4 |
    | emitted_last | 0 | 1 | tokens that the last cycle emitted / (D + 1), 0 in a request's first cycle |
    | emitted_mean_4 | 0 | 1 | the same, mean of the last 4 cycles |
    | tokens_left | 0 | 1 | tokens left in the request / (2D + 2), at most 1 |

    ## Reward

    Tokens per second of the cycle's work when it ends (`envs.rewards`), 0 before. `info` then holds
    `tokens_per_second`, `emitted`, `draft_depth`, `verification_size`, `accepted` and `seconds` by phase.

    Args:
        open_session: opens the next request, drawn with the generator it is given.
        partner: chooses the verification size.
        beam_width, max_depth: shape of the drafts; see `DepthFeatures`.
        reward: name of a function in `envs.rewards`.
        features: other ones to see, of the same shape; some policies are not asked at the root.
    """

    def __init__(
        self,
        open_session: OpenSession,
        partner: Controller,
        beam_width: int,
        max_depth: int,
        reward: str = "throughput",
        features: DepthFeatures | None = None,
    ) -> None:
        features = DepthFeatures(beam_width, max_depth) if features is None else features
        super().__init__(open_session, partner, features, reward)
        self.action_space = spaces.Discrete(2)
        self._max_depth = max_depth
        self._asked_of = ("draft", "level") if features.asks_at_root else ("level",)

    def _asks_agent(self, question: Question) -> bool:
        return question.kind in self._asked_of and question.view.tree.depth < self._max_depth

    def _partner_reply(self, question: Question) -> int:
        if question.kind == "size":
            return super()._partner_reply(question)
        # A depth question that is not the agent's comes at max_depth, where there is nothing left to decide,
        # or at the root of a policy that always drafts.
        return int(question.kind == "draft")

    def _reply(self, action: int) -> int:
        return action


class SizeEnv(LiveEnv):
    """How much of a complete draft to verify: asked once in every cycle that drafts. Episodes have one step.

    With S = `max_size` and D = `max_depth`; scores are held to -20 and above, absent ones read
    as -20.

    ## Action space: Discrete(n)

    | action | meaning |
    |---|---|
    | i | verify the `verification_sizes[i]` best nodes, all if there are fewer |

    ## Observation space: Box((S + 4,), float32)

    | entry | low | high | what |
    |---|---|---|---|
    | tree_score_0 .. tree_score_{S-1} | -2 | 0 | the whole tree's path scores / 10, best first |
    | draft_depth | 0 | 1 | levels drafted / D |
    | log2_context_length | -2 | 4 | (log2 of the committed tokens - 8) / 4 |
    | emitted_last | 0 | 1 | tokens that the last cycle emitted / (D + 1), 0 in a request's first cycle |
    | emitted_mean_4 | 0 | 1 | the same, mean of the last 4 cycles |

    ## Reward

    Tokens per second of the cycle's work when it ends (`envs.rewards`). `info` then holds
    `tokens_per_second`, `emitted`, `draft_depth`, `verification_size`, `accepted` and `seconds` by phase.

    Args:
        open_session: opens the next request, drawn with the generator it is given.
        partner: chooses the depth.
        verification_sizes: the action table: nodes to verify, strictly increasing.
        max_depth: greatest draft_depth of the partner; see `SizeFeatures`.
        max_size: path scores to see; the largest verification size if not given.
        reward: name of a function in `envs.rewards`.
        features: other ones to see.
    """

    def __init__(
        self,
        open_session: OpenSession,
        partner: Controller,
        verification_sizes: Sequence[int],
        max_depth: int,
        max_size: int | None = None,
        reward: str = "throughput",
        features: SizeFeatures | None = None,
    ) -> None:
        sizes = tuple(verification_sizes)
        if not sizes or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"verification_sizes is {sizes}, must be strictly increasing, at least one")
        for size in sizes:
            FixedController(0, size)  # checks the limits
        features = SizeFeatures(max_size or sizes[-1], max_depth) if features is None else features
        super().__init__(open_session, partner, features, reward)
        self.action_space = spaces.Discrete(len(sizes))
        self._sizes = sizes

    def _asks_agent(self, question: Question) -> bool:
        return question.kind == "size"

    def _reply(self, action: int) -> int:
        return self._sizes[action]
