"""Arms, observations and reports made by hand, for tests of what is said about a run."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from rich.console import Console

from decoding.controller import DraftView, FixedController, PlainController
from decoding.metrics import CycleSummary
from decoding.records import PhaseSeconds
from decoding.workload import Request
from evaluation.protocol import Arm, FixedSetting, Observation
from evaluation.report import build_report, describe_workload
from evaluation.schema import Models, Report, SamplingUsed
from evaluation.table import print_report

MAX_NEW_TOKENS = 14
REQUESTS = [
    Request("q1", ("one",), "chat", "en", "q1"),
    Request("q2", ("two, longer",), "maths", "en", "q2"),
    Request("it-1", ("uno",), "chat", "it", "q1"),
]


class Wavering:
    """A stand-in for a learned policy: another depth and size in every cycle."""

    def __init__(self) -> None:
        self.cycles = 0

    def wants_draft(self, view: DraftView) -> bool:
        self.cycles += 1
        return self.cycles % 3 > 0

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < self.cycles % 5

    def verification_size(self, view: DraftView) -> int:
        return 1 + self.cycles % 4


def fixed(depth: int, size: int, drafter: str = "eagle", **more: Any) -> Arm:
    setting = FixedSetting(drafter, depth, size)
    return Arm(f"{drafter} {depth} x {size}", lambda: FixedController(depth, size), "fixed", setting, **more)


PLAIN = Arm("plain", PlainController, "plain")
LEARNED = Arm("learned", Wavering, "learned")


def report_of(
    arms: list[Arm], observations: list[Observation], requests: list[Request] = REQUESTS, **changed: Any
) -> Report:
    repeats = 1 + max(row.repeat for row in observations)
    given: dict[str, Any] = {
        "workload": describe_workload(["w.jsonl"], "test", requests, repeats),
        "models": Models(target="tiny", drafter="eagle"),
        "dtype": "float64",
        "sampling": SamplingUsed(temperatures=[0.7], max_new_tokens=MAX_NEW_TOKENS),
        "config": {"evaluation": {"prompts": 3}},
        "policy": None,
        "seeds": {"sampling": 3},
        "rng": np.random.default_rng(0),
    }
    return build_report(arms, observations, **{**given, **changed})


def by_hand(arm: Arm, seconds_per_token: list[float]) -> list[Observation]:
    return [
        Observation(
            arm=arm.name,
            question_id=f"q{number}",
            group=f"q{number}",
            category=None,
            language=None,
            repeat=0,
            block=number,
            place=0,
            prefill_seconds=0.1,
            cycles=CycleSummary(cycles=5, emitted=10, seconds=PhaseSeconds(verify=9 * each, policy=each)),
            token_hash="",
            load=100.0 + number,
        )
        for number, each in enumerate(seconds_per_token)
    ]


def made_up(groups: int, **speeds: float) -> Report:
    """Arms that decode so many tokens per second, give or take 2 % by question; fixed: `fixed`, `weaker`."""
    arms = {"plain": PLAIN, "fixed": fixed(4, 8), "weaker": fixed(2, 4), "learned": LEARNED}
    noise = np.random.default_rng(5)
    rows = [
        row
        for name, speed in speeds.items()
        for row in by_hand(arms[name], [math.exp(noise.normal(0, 0.02)) / speed for _ in range(groups)])
    ]
    return report_of([arms[name] for name in speeds], rows)


def printed(report: Report) -> str:
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=200))
    return stream.getvalue()
