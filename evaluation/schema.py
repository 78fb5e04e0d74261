"""The published schema of report.json. Unknown keys, NaN and infinity are refused.

Fields that may be null belong to work that is not done yet, or were not measured in the run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

SCHEMA_VERSION = 1


Rate = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Json = dict[str, JsonValue]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Machine(_Part):
    """Where it was measured."""

    cpu: str = Field(description="name of the processor")
    cores: int = Field(ge=1, description="cores that the process may use")
    threads: int = Field(ge=1, description="CPU threads that torch was pinned to")
    gpu: str | None = Field(description="name of the device that decoded; null on a CPU")
    platform: str = Field(description="operating system, version and architecture")
    load_mean: Rate | None = Field(None, description="1-minute load average, mean over blocks")
    load_max: Rate | None = Field(None, description="the same, of the busiest block")


class Models(_Part):
    """What decoded."""

    target: str
    drafter: str
    target_fingerprint: str | None = None
    drafter_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    path: Literal["fast", "eager"] | None = Field(None, description="fast: native code ran the target")


class SamplingUsed(_Part):
    """The law of the text."""

    temperature: Rate
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int = Field(ge=1)


class Workload(_Part):
    """What was decoded."""

    files: list[str]
    split: str
    requests: int = Field(ge=1, description="prompts that every arm decoded")
    groups: int = Field(ge=1, description="independent questions: translations of one are one group")
    repeats: int = Field(ge=1, description="times that every arm decoded every prompt")
    categories: dict[str, Count] = Field(description="prompts by category")
    languages: dict[str, Count] = Field(description="prompts by language")


class ArmSlice(_Part):
    """An arm on some of the requests. All are ratios of sums, prefill excluded."""

    tokens_per_second: Rate
    speedup_vs_plain: Rate = Field(description="over plain decoding of the same requests in the same run")
    tau: Rate = Field(description="acceptance length: emitted tokens per cycle; plain = 1")
    requests: int = Field(ge=1, description="requests decoded, repeats counted")


class ArmResult(ArmSlice):
    """An arm on all requests."""

    kind: str = Field(description="plain, fixed, rule or learned")
    policy_overhead_fraction: Share = Field(description="share of the seconds that answering questions took")
    text_equal: bool = Field(description="every text is the same token ids as plain decoding's")
    texts_unequal: Count = Field(description="texts that are not")
    acceptance_rate: list[Share] = Field(description="accepted / offered, by depth from 1")
    seconds_by_phase: dict[str, Rate] = Field(description="draft, select, verify, commit, policy")


class GridPoint(_Part):
    """A fixed setting."""

    drafter: str
    lookup_depth: Count | None = Field(description="null for a drafter without lookup beside its draft")
    draft_depth: Count
    verification_size: Count
    tokens_per_second: Rate


class ComparisonResult(_Part):
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


class Bound(_Part):
    """What share of the possible saving the learned arm reaches."""

    reachable_share: float | None
    clairvoyant_share: float | None


class Report(_Part):
    """A whole evaluation."""

    schema_version: int = Field(SCHEMA_VERSION, ge=1)
    machine: Machine
    versions: dict[str, str | None] = Field(description="null: not installed")
    models: Models
    dtype: str
    sampling: SamplingUsed
    workload: Workload
    confidence: float = Field(gt=0, lt=1, description="of the two-sided intervals")
    arms: dict[str, ArmResult]
    grid: list[GridPoint]
    comparisons: list[ComparisonResult]
    by_category: dict[str, dict[str, ArmSlice]] = Field(description="category -> arm -> result")
    by_language: dict[str, dict[str, ArmSlice]] = Field(description="language -> arm -> result")
    verdict: str = Field(min_length=1, description="one sentence: who won, by how much, how sure")
    config: Json
    policy: Json | None = Field(description="of the exported policy; null if none was evaluated")
    seeds: dict[str, int]
    bound: Bound | None = None
    aa: None = None
    reliability: None = None
    collapse: None = None


def json_schema() -> dict[str, Any]:
    """The schema of report.json as JSON Schema."""
    return Report.model_json_schema()
