"""Small parts of report.json that others are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Json = dict[str, JsonValue]


class Part(BaseModel):
    """Unknown keys, NaN and infinity are refused; nothing changes once it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Quantiles(Part):
    """Of one measure over requests, or over what is said beside it."""

    p50: Rate
    p95: Rate
    p99: Rate


class Latency(Part):
    """What somebody who waits for the text sees, in milliseconds."""

    ttft: Quantiles = Field(description="prefill and first cycle, over requests")
    itl_cycle: Quantiles = Field(description="gap between two cycles; a cycle's tokens arrive together")
    itl_amortised: Quantiles = Field(description="the same gap over the tokens that arrive, over tokens")
    total: Quantiles = Field(description="prefill and all cycles, over requests")


class ActionCount(Part):
    """How often a cycle did this."""

    draft_depth: Count
    verification_size: Count
    cycles: Count


class GridPoint(Part):
    """A fixed setting."""

    drafter: str = Field(description="head, lookup, composite or merged, or the drafter's own name")
    lookup_depth: Count | None = Field(description="null for a drafter without lookup beside its draft")
    draft_depth: Count
    verification_size: Count
    tokens_per_second: Rate


class ComparisonResult(Part):
    """How much faster `a` decodes than `b`."""

    a: str
    b: str
    ratio: Rate = Field(description="a's tokens/s over b's, geometric mean over groups; above 1: a is faster")
    low: Rate | None = Field(description="two-sided interval of ratio; null with too few groups")
    high: Rate | None
    claimed: bool = Field(description="differs from 1 after Holm's correction over this report")
    ratio_of_sums: Rate
    groups: int = Field(ge=1)
    p_value: Share | None = Field(description="two-sided, uncorrected; null without an interval")


class SameArm(Part):
    """An arm over itself: what the measurement alone makes of no difference."""

    a: str
    b: str
    ratio: Rate
    low: Rate | None = Field(description="99.9 % interval; null with too few groups")
    high: Rate | None
    half_width: Rate | None = Field(description="of the 95 % interval, in log-ratio: no claim is below it")
    usable: bool = Field(description="the 99.9 % interval holds 1 and the ratio is within 1 % of 1")


class Power(Part):
    """How many questions it takes to see an effect, by this run's spread."""

    effect: float = Field(description="log-ratio that is to be seen, e.g. 0.02")
    spread: Rate = Field(description="standard deviation over questions of the log-ratio")
    groups: int = Field(ge=1, description="questions of this run")
    groups_needed: int = Field(ge=1, description="for power 0.8 at the report's confidence, two-sided")


class ReliabilityBin(Part):
    """Nodes whose promised survival is in a range."""

    low: Share
    high: Share
    nodes: Count
    promised: Share = Field(description="mean of what their scores said")
    came: Share = Field(description="share that was on the accepted path")


class CrossCheck(Part):
    """A fixed depth's speed-up, by formula and as measured."""

    draft_depth: Count
    measured: Rate = Field(description="over plain decoding, live")
    joint: Rate = Field(description="predicted from measured joint prefix probabilities and costs")
    constant_alpha: Rate = Field(description="predicted from one acceptance rate alone")
    drafter: str = Field("head", description="what the fixed setting drafts with")
    verification_size: Count | None = Field(None, description="null in a plain step")
    low: Rate | None = Field(None, description="interval of measured; null with too few groups")
    high: Rate | None = None
    emitted: Rate | None = Field(None, description="tokens a cycle that joint rests on")
    emitted_constant_alpha: Rate | None = Field(None, description="tokens a cycle by the one acceptance rate")
    theorem: Rate | None = Field(
        None, description="the published formula itself: one rate, a verification as dear as a plain step"
    )


class Regime(Part):
    """The same texts at other costs."""

    name: str
    synthetic: bool = Field(description="made, not measured on such a machine")
    live: bool = Field(description="decoded; else replayed")
    best_fixed: str
    best_fixed_vs_plain: Rate
    learned: ComparisonResult = Field(description="the learned policy over that regime's best fixed setting")
    costs: str = Field("", description="what differs from the measured costs")
    best_hindsight: str | None = Field(None, description="the fixed setting that is best on these very texts")
    over_hindsight: ComparisonResult | None = Field(None, description="the learned policy over that")
    expected_gain: ComparisonResult | None = Field(None, description="the rule over the best fixed setting")
    learned_over_gain: ComparisonResult | None = None
    not_retrained: ComparisonResult | None = Field(
        None, description="the policy trained for the measured costs over the best fixed setting"
    )
    retraining: ComparisonResult | None = Field(None, description="the learned policy over that policy")
    clairvoyant: ComparisonResult | None = Field(
        None, description="the best schedule of all over the best fixed setting"
    )


class StripCycle(Part):
    """One cycle of a text that is shown token by token."""

    draft_depth: Count
    verification_size: Count
    tokens: list[str] = Field(description="pieces of text that the cycle committed, its closing token last")


class StripText(Part):
    """A text as the learned policy decoded it."""

    question_id: str
    category: str | None
    cycles: list[StripCycle]
