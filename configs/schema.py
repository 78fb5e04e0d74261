"""What a run can be told: frozen sections, every key with its meaning and limits; unknown keys are refused.

Names are the words of design.md section 2: a value is called the same in YAML, code, records and reports.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from configs.evaluation_schema import EvaluationSettings
from configs.policy_schema import PolicySettings
from configs.section import Contexts, Count, Names, RepoPath, RepoPaths, Section


class ModelSettings(Section):
    """Which models decode, where and in what number format."""

    target: str = Field(
        "smollm2-135m",
        min_length=1,
        description="target model: built-in name, hub id, folder or GGUF file",
    )
    drafter: str = Field(
        "smollm2-135m-eagle3",
        min_length=1,
        description="drafter for that target: built-in name, hub id or folder",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto (CUDA if there is one), cpu, cuda or cuda:N",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = Field(
        "auto",
        description="auto: the checkpoint's on CUDA, bfloat16 on CPUs that accelerate it, else float32",
    )
    path: Literal["auto", "fast", "eager"] = Field(
        "auto", description="fast: native code on the CPU; auto: fast where it can be"
    )
    extra_layers: int = Field(
        0,
        ge=0,
        le=1000,
        description="synthetic: layers that add zero make the target slower and change no text; 0: none",
    )


class SamplingSettings(Section):
    """The law that the text follows; nothing else in this file can change it."""

    temperature: float = Field(0.0, ge=0, description="0 is greedy")
    top_k: Count | None = Field(None, description="keep the k likeliest tokens; null keeps all")
    top_p: float | None = Field(
        None, gt=0, le=1, description="keep the likeliest tokens up to this mass; null keeps all"
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="keep tokens this share as likely as the likeliest; null keeps all"
    )
    repetition_penalty: float | None = Field(
        None, gt=0, le=100, description="above 1: makes tokens of prompt and text less likely; null: none"
    )
    max_new_tokens: int = Field(64, ge=1, description="tokens generated for a training prompt")

    @property
    def law(self) -> dict[str, Any]:
        """All but the number of tokens: what `open_session` takes under the same names."""
        return self.model_dump(exclude={"max_new_tokens"})


class WorkloadSettings(Section):
    """The prompts, split by hash of their group into training, validation and test."""

    files: Annotated[list[RepoPath], Field(min_length=1)] = Field(
        [Path("configs/prompts/mixed.jsonl"), Path("configs/prompts/multilingual.jsonl")],
        description="JSONL workloads; relative paths start at the checkout",
    )
    categories: Names | None = Field(None, description="only these categories; null takes all")
    languages: Names | None = Field(None, description="only these languages; null takes all")
    train_prompts: Count | None = Field(None, description="at most so many training prompts; null takes all")
    validation_prompts: Count | None = Field(
        None, description="at most so many validation prompts; null takes all"
    )


class DraftSettings(Section):
    """The tree that a drafter may grow."""

    beam_width: int = Field(4, ge=1, le=32, description="nodes expanded at a level, and children of each")
    max_depth: int = Field(6, ge=1, le=32, description="greatest draft_depth a policy or a grid may ask for")
    calibrated: bool = Field(True, description="use the drafter's calibration; false: scores as they are")
    min_match: int = Field(2, ge=1, le=32, description="shortest match in the text that a lookup drafts from")
    lookup_depth: int = Field(6, ge=1, le=64, description="most tokens of the chain that a merged tree joins")


class DrafterSettings(Section):
    """Training of an EAGLE-3 head for the target."""

    corpus: RepoPaths | None = Field(
        None,
        description="JSONL of texts, .npz with tokens and offsets, a folder of such .npz, or a list of these;"
        " null: the target writes its own",
    )
    written_tokens: int = Field(
        1_000_000, ge=1, description="tokens that the target writes, prompts included"
    )
    written_temperatures: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)] = Field(
        [0.0, 0.0, 0.7, 1.0], description="of its answers, each as often as it is named; 0 is greedy"
    )
    written_batch: int = Field(64, ge=1, le=4096, description="texts written at a time")
    openings: RepoPath | None = Field(
        Path("configs/prompts/openings.jsonl"),
        description="beginnings of user turns that it completes; null: it begins every turn itself",
    )
    draft_vocabulary: int = Field(
        6144, ge=2, description="commonest tokens of the corpus that the head can draft"
    )
    start_from: RepoPath | None = Field(
        None, description="folder of a head to go on from, with more or other text; null: a fresh head"
    )
    fused_layers: Annotated[list[Count], Field(min_length=3, max_length=3)] | None = Field(
        None,
        description="three layers of the target whose outputs the head reads, the first is 1; null: the usual"
        " low, middle and high ones, or those of the head in start_from",
    )
    freeze_output: bool = Field(
        True, description="leave the output rows as they are, the target's own; false: train them too"
    )
    unroll_steps: int = Field(2, ge=1, le=16, description="draft levels trained on the head's own features")
    minutes: float = Field(20.0, gt=0, description="time of the training steps, measuring not counted")
    evaluate_every: int = Field(200, ge=1, description="steps between two measurements on held-out texts")
    patience: Count | None = Field(
        6,
        description="measurements in a row without a better one before it stops; null: only minutes stop it",
    )
    keep_states: bool = Field(
        True,
        description="keep the target's states in OUT/states for a run that is resumed; 4.6 KB a token for the"
        " built-in target",
    )
    learning_rate: float = Field(1e-3, gt=0, le=1, description="AdamW's peak step size")
    weight_decay: float = Field(0.05, ge=0, le=1, description="AdamW's pull of the weights towards 0")
    batch_tokens: int = Field(512, ge=2, description="tokens in one gradient step; at least max_length")
    max_length: int = Field(320, ge=2, description="longer texts are cut here")
    held_out_share: float = Field(
        0.05, gt=0, le=0.5, description="share of the texts kept to measure accuracy"
    )

    @model_validator(mode="after")
    def _a_text_fits_a_batch(self) -> "DrafterSettings":
        if self.max_length > self.batch_tokens:
            raise ValueError(
                f"max_length = {self.max_length} must be at most batch_tokens = {self.batch_tokens};"
                f" lower it, e.g. to {self.batch_tokens}"
            )
        return self


class TraceSettings(Section):
    """Recordings for training without a model: train.py traces."""

    temperatures: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)] = Field(
        [0.0, 0.7, 1.0], description="a recording of every prompt at each"
    )
    texts: RepoPath | None = Field(
        None,
        description="folder of texts that the target wrote (train.py texts): their prompts are recorded;"
        " null: the workload's",
    )
    earlier_texts: Annotated[list[Annotated[int, Field(ge=0, le=64)]], Field(min_length=1)] = Field(
        [0],
        description="of such texts, so many whole ones stand before a prompt, in turn: longer contexts",
    )
    split: Literal["train", "validation", "test"] = Field("train", description="of the workload")
    prompts: Count | None = Field(None, description="at most so many; null takes all")
    max_new_tokens: int = Field(128, ge=1, description="tokens decoded for a prompt")
    draft_depth: int = Field(6, ge=1, le=32, description="levels drafted at every position")
    batch: int = Field(32, ge=1, le=128, description="texts at a time, on the fast path")


class CalibrationSettings(Section):
    """Fitting what a draft's scores mean: train.py calibrate."""

    temperatures: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)] = Field(
        [0.0, 0.6, 1.0], description="temperatures to fit at, ascending; those between are interpolated"
    )
    prompts: Count | None = Field(None, description="at most so many training prompts; null takes all")
    validation_prompts: Count | None = Field(
        8, description="at most so many validation prompts, on which it is looked at; null takes all"
    )
    max_new_tokens: int = Field(48, ge=1, description="tokens decoded for a prompt")
    draft_depth: int = Field(6, ge=1, le=32, description="levels to fit")
    batch: int = Field(32, ge=1, le=4096, description="prompts decoded at a time")

    @model_validator(mode="after")
    def _temperatures_ascend(self) -> "CalibrationSettings":
        if any(low >= high for low, high in pairwise(self.temperatures)):
            raise ValueError(
                f"temperatures must be strictly increasing, e.g. {sorted(set(self.temperatures))}"
            )
        return self


class ProfileSettings(Section):
    """Measuring what the parts of a cycle cost: train.py profile."""

    contexts: Contexts = Field(
        [64, 256, 1024],
        description="committed tokens to measure at, strictly increasing; costs between are interpolated",
    )
    max_size: int = Field(64, ge=1, le=1024, description="largest verification_size to measure")
    rounds: int = Field(14, ge=3, le=1000, description="cycles of each row count at each context")


class Config(Section):
    """A whole run. `seed` and `threads` are null for "choose"; what was chosen is printed and recorded."""

    # numpy, torch and Stable-Baselines3 share this range
    seed: int | None = Field(None, ge=0, le=2**32 - 1, description="null: a fresh one, printed and recorded")
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads; null: every core the process may use"
    )
    model: ModelSettings = Field(default_factory=ModelSettings, description="what decodes")
    sampling: SamplingSettings = Field(default_factory=SamplingSettings, description="how text is drawn")
    workload: WorkloadSettings = Field(default_factory=WorkloadSettings, description="the prompts")
    draft: DraftSettings = Field(default_factory=DraftSettings, description="limits of the drafted tree")
    policy: PolicySettings = Field(default_factory=PolicySettings, description="train.py policy")
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings, description="evaluate.py")
    drafter: DrafterSettings = Field(default_factory=DrafterSettings, description="train.py drafter")
    traces: TraceSettings = Field(default_factory=TraceSettings, description="train.py traces")
    calibration: CalibrationSettings = Field(
        default_factory=CalibrationSettings, description="train.py calibrate"
    )
    profile: ProfileSettings = Field(default_factory=ProfileSettings, description="train.py profile")

    @model_validator(mode="after")
    def _depths_can_be_drafted(self) -> "Config":
        # a deeper request would be clipped without a word, and its row of the report would be a lie
        asked = {
            "policy.partner_depth": self.policy.partner_depth,
            "evaluation.draft_depths": max(self.evaluation.draft_depths),
        }
        for key, depth in asked.items():
            if depth > self.draft.max_depth:
                raise ValueError(
                    f"{key} asks for depth {depth}, but draft.max_depth = {self.draft.max_depth};"
                    f" lower the first or raise the second"
                )
        return self
