"""The published schema of report.json. Unknown keys, NaN and infinity are refused.

Fields that may be null were not measured in the run. `python -m evaluation.schema` prints the JSON
Schema that docs/report.schema.json publishes.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from evaluation.schema_parts import (
    ActionCount,
    ComparisonResult,
    Count,
    CrossCheck,
    GridPoint,
    Json,
    Latency,
    Part,
    Power,
    Rate,
    Regime,
    ReliabilityBin,
    SameArm,
    Share,
    StripText,
)

SCHEMA_VERSION = 2


class Machine(Part):
    """Where it was measured."""

    cpu: str = Field(description="name of the processor")
    cores: int = Field(ge=1, description="cores that the process may use")
    threads: int = Field(ge=1, description="CPU threads that torch was pinned to")
    gpu: str | None = Field(description="name of the device that decoded; null on a CPU")
    platform: str = Field(description="operating system, version and architecture")
    load_mean: Rate | None = Field(None, description="1-minute load average, mean over blocks")
    load_max: Rate | None = Field(None, description="the same, of the busiest block")


class Models(Part):
    """What decoded."""

    target: str
    drafter: str
    target_fingerprint: str | None = None
    drafter_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    path: Literal["fast", "eager"] | None = Field(None, description="fast: native code ran the target")


class SamplingUsed(Part):
    """The law of the text."""

    temperatures: list[Rate] = Field(min_length=1, description="every prompt is decoded at each of them")
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int = Field(ge=1)


class Workload(Part):
    """What was decoded."""

    files: list[str]
    split: str
    requests: int = Field(ge=1, description="prompts that every arm decoded")
    groups: int = Field(ge=1, description="independent questions: translations of one are one group")
    repeats: int = Field(ge=1, description="times that every arm decoded every prompt")
    categories: dict[str, Count] = Field(description="prompts by category")
    languages: dict[str, Count] = Field(description="prompts by language")


class ArmSlice(Part):
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
    source: str | None = Field(None, description="of a rule: where it comes from")
    tuned: str | None = Field(None, description="of a rule: what was chosen on validation texts")
    latency: Latency | None = None
    peak_memory_mb: Rate | None = Field(None, description="resident, or the device's, of the process")
    emitted: list[Count] = Field([], description="cycles that committed 0, 1, 2 .. tokens")
    actions: list[ActionCount] = Field([], description="what cycles did, commonest first")
    live: bool = Field(True, description="measured by decoding on the clock")
    over_plain: ComparisonResult | None = Field(
        None, description="with its interval, for the picture: outside of Holm's family, never claimed"
    )


class Bound(Part):
    """What share of the possible saving the learned arm reaches."""

    reachable_share: float | None
    clairvoyant_share: float | None


class ReplayArm(Part):
    """An arm in replay: traces and cost profile, no clock."""

    kind: str = Field(description="plain, fixed, rule, learned or bound")
    tokens_per_second: Rate
    speedup_vs_plain: Rate
    tau: Rate | None = Field(None, description="null for bounds")
    source: str | None = None
    tuned: str | None = None
    learned_over_it: ComparisonResult | None = None


class Replay(Part):
    """All arms and the whole grid, without timing noise."""

    texts: int = Field(ge=1)
    tokens: int = Field(ge=1)
    arms: dict[str, ReplayArm]
    grid: list[GridPoint] = Field(description="of every drafter, over the test texts")
    best_by_validation: list[str] = Field(description="the top two fixed settings on validation texts")
    best_in_hindsight: str
    best_by_category: dict[str, str] = Field(description="in hindsight")
    warnings: list[str] = Field(description="e.g. that the best lies on an edge of the grid")
    not_slower: dict[str, tuple[Rate, Rate]] = Field(
        description="by category: learned over plain, and its lower bound, simultaneous over categories"
    )

    def in_order(self) -> list[tuple[str, ReplayArm]]:
        """Fastest first; bounds, which are no arms, last."""
        return sorted(
            self.arms.items(), key=lambda entry: (entry[1].kind == "bound", -entry[1].tokens_per_second)
        )


class Slices(Part):
    """A comparison by some part of the workload, with intervals where there are questions enough."""

    by_category: dict[str, list[ComparisonResult]]
    by_language: dict[str, list[ComparisonResult]]
    by_temperature: dict[str, list[ComparisonResult]]


class Report(Part):
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
    policy_folders: dict[str, str] = Field({}, description="of every policy that was an arm, by its name")
    seeds: dict[str, int]
    by_temperature: dict[str, dict[str, ArmSlice]] = Field({}, description="temperature -> arm -> result")
    slices: Slices | None = Field(None, description="the learned arm over plain and over the best two fixed")
    same_questions: dict[str, dict[str, ArmSlice]] = Field(
        {}, description="language -> arm -> result, of the questions that all languages have"
    )
    replay: Replay | None = None
    bound: Bound | None = None
    aa: SameArm | None = None
    power: Power | None = None
    overhead: ComparisonResult | None = Field(
        None, description="the learned arm, overridden by the best fixed setting, over that setting"
    )
    reliability: list[ReliabilityBin] | None = None
    collapse: Json | None = Field(None, description="of the policy's validation: what its export says")
    cross_check: list[CrossCheck] = []
    regimes: list[Regime] = []
    strips: list[StripText] = []
    reruns: Count = Field(0, description="blocks that were decoded again, since other work disturbed them")
    disturbed: Count = Field(0, description="blocks that were disturbed in every attempt")
    blocks: Count | None = Field(None, description="prompts x temperatures x repeats that were decoded")
    blocks_planned: Count | None = Field(None, description="the same, had there been time")
    forced_text: bool = Field(
        False, description="main arms decoded the text of plain decoding: half precision rounds apart"
    )
    free_running: dict[str, ArmSlice] = Field(
        {}, description="main arms on texts of their own, on the prompts of the rest"
    )
    command: str | None = Field(None, description="what repeats this run, its seeds included")


def json_schema() -> dict[str, Any]:
    """The schema of report.json as JSON Schema."""
    return Report.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
