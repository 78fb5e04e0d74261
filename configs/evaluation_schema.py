"""The section `evaluation` of a configuration."""

from typing import Annotated

from pydantic import Field

from configs.section import Increasing, RepoPath, Section


class EvaluationSettings(Section):
    """The comparison on unseen prompts: in replay every arm and the whole grid, live those that matter."""

    temperatures: Annotated[list[Annotated[float, Field(ge=0, le=10)]], Field(min_length=1)] | None = Field(
        None, description="every prompt is decoded at each; null: sampling.temperature alone"
    )
    traces: RepoPath | None = Field(
        None, description="folder of train.py traces of the test prompts; null: recorded first"
    )
    validation_traces: RepoPath | None = Field(
        None, description="the same of the validation prompts, which choose settings; null: recorded first"
    )
    cross_check: RepoPath | None = Field(
        None, description="JSON of benchmarks.cross_check --rows, to be shown in the report; null: none"
    )
    regimes: RepoPath | None = Field(
        None, description="regimes.json of benchmarks.regimes, to be shown in the report; null: none"
    )
    arms: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="live arms by name, plain decoding is always one; null: all that there are"
    )
    rules: list[str] | None = Field(
        None, description="rules of other papers to tune and replay, docs/rules.md; null: all, []: none"
    )
    draft_depths: Increasing = Field(
        [1, 2, 4, 6], description="first and last are corners of the live grid, strictly increasing"
    )
    verification_sizes: Increasing = Field(
        [4, 8, 16], description="the same; the replayed grid has policy.cycle.verification_sizes"
    )
    prompts: int | None = Field(
        8, ge=1, description="test prompts that every main arm decodes; null takes all"
    )
    rest_prompts: int = Field(
        4, ge=0, description="of them, how many the other rules and the grid's corners decode; 0: none"
    )
    repeats: int = Field(1, ge=1, description="times every arm decodes every prompt, a process each")
    max_new_tokens: int = Field(48, ge=1, description="tokens generated for an evaluation prompt")
    minutes: float | None = Field(
        75.0, gt=0, description="of a temperature's live blocks; null: as long as they take"
    )
    other_cores: float = Field(
        0.25, ge=0, description="a block beside which other processes used more is decoded again"
    )
    reruns: int = Field(2, ge=0, le=10, description="at most so often")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="of the two-sided intervals")

    def used_temperatures(self, usual: float) -> list[float]:
        """Those given, each once, ascending; else the usual one."""
        return sorted({usual} if self.temperatures is None else set(self.temperatures))
