"""Recordings of prompts: each text decoded plainly, then drafted at every position, many texts together."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass

from decoding.controller import PlainController, RootChoice
from decoding.drafters.base import Drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.noise import NoiseStream
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from decoding.together import Job, Worker, run_together
from decoding.traces import Position, record_text


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a text begins with: token ids, and what to remember of the question, see `workload.Request`."""

    question_id: str
    token_ids: tuple[int, ...]
    category: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A prompt, the token ids that plain decoding added, and the drafts at each of their positions."""

    prompt: Prompt
    text_ids: list[int]
    positions: list[Position]


@dataclass(frozen=True, slots=True)
class Recording:
    """How texts are recorded.

    Attributes:
        sampling, seed: of the texts, as a session takes them.
        max_new_tokens: most tokens of a text, >= 1.
        draft_depth: levels drafted at every position, >= 1.
        choices: what to draft with, see `record_text`.
        batch: texts at a time, >= 1; in native code they share the reading of the weights.
    """

    sampling: Sampling
    seed: int
    max_new_tokens: int
    draft_depth: int
    choices: tuple[RootChoice, ...] = (RootChoice.ALL,)
    batch: int = 16


def record(
    target: TargetModel,
    drafter: Drafter,
    end_ids: Collection[int],
    prompts: Iterable[Prompt],
    recording: Recording,
) -> Generator[Recorded, None, None]:
    """Yield each prompt's recording, in order; what `Session` and `record_text` give for it alone.

    On the eager path texts come one after the other. ValueError names the prompt that cannot be decoded.
    """

    def job(prompt: Prompt) -> Job[Recorded]:
        return lambda worker: _recorded(worker, target, drafter, end_ids, prompt, recording)

    # Threads without forwards to share would only stand in each other's way.
    most = recording.batch if target.fast is not None else 1
    return run_together(map(job, prompts), most)


def _recorded(
    worker: Worker,
    target: TargetModel,
    drafter: Drafter,
    end_ids: Collection[int],
    prompt: Prompt,
    recording: Recording,
) -> Recorded:
    mine, ids = worker.target(target), list(prompt.token_ids)
    try:
        session = Session(
            mine,
            NgramDrafter(),  # plain decoding drafts nothing, and this one costs nothing
            ids,
            max_new_tokens=recording.max_new_tokens,
            end_ids=end_ids,
            sampling=recording.sampling,
            seed=recording.seed,
        )
        for _ in session.run(PlainController()):
            pass
    except ValueError as error:
        raise ValueError(f"question {prompt.question_id!r}: {error}") from None
    positions = record_text(
        mine,
        worker.drafter(drafter),
        ids,
        session.generated,
        draft_depth=recording.draft_depth,
        temperature=recording.sampling.temperature,
        noise=NoiseStream(recording.seed, ids),
        choices=recording.choices,
    )
    return Recorded(prompt, session.generated, list(positions))
