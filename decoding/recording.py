"""Recordings of prompts: each text decoded plainly, then drafted at every position, many texts together."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass

import torch

from decoding.controller import RootChoice
from decoding.drafters.base import Drafter
from decoding.noise import NoiseStream
from decoding.sampling import Sampling, TokenChooser
from decoding.session import check_prompt
from decoding.target import TargetModel
from decoding.together import Job, Worker, run_together
from decoding.traces import NO_LAW, Position, TargetRows, laws_of_rows, record_text


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a text begins with: token ids, and what to remember of the question, see `workload.Request`."""

    question_id: str
    token_ids: tuple[int, ...]
    category: str | None = None
    language: str | None = None


def digest(prompts: Iterable[Prompt]) -> str:
    """Names these prompts in this order: question ids and token ids."""
    found = hashlib.sha256()
    for prompt in prompts:
        found.update(repr((prompt.question_id, prompt.token_ids)).encode())
    return found.hexdigest()[:16]


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
    noise = NoiseStream(recording.seed, ids)
    try:
        check_prompt(ids, mine, recording.max_new_tokens)
        text_ids, rows = _decoded(mine, ids, TokenChooser(recording.sampling, noise), end_ids, recording)
    except ValueError as error:
        raise ValueError(f"question {prompt.question_id!r}: {error}") from None
    positions = record_text(
        mine,
        worker.drafter(drafter),
        ids,
        text_ids,
        draft_depth=recording.draft_depth,
        temperature=recording.sampling.temperature,
        noise=noise,
        choices=recording.choices,
        rows=rows,
    )
    return Recorded(prompt, text_ids, list(positions))


@torch.inference_mode()
def _decoded(
    target: TargetModel,
    prompt_ids: list[int],
    chooser: TokenChooser,
    end_ids: Collection[int],
    recording: Recording,
) -> tuple[list[int], TargetRows]:
    """The text of a plain session, and what the target computed on its way: a second pass over the text would
    cost as much again."""
    cache, committed = target.new_cache(), list(prompt_ids)
    limit = min(len(prompt_ids) + recording.max_new_tokens, target.context_limit)
    features: list[torch.Tensor] = []
    laws = []
    if len(prompt_ids) > 1:
        output = target.forward(prompt_ids[:-1], cache, last_logits_only=True)
        laws += laws_of_rows(output.logits_RV[-1:])
        features += [] if output.features_RF is None else [output.features_RF]
    else:
        laws.append(NO_LAW)
    while True:
        output = target.forward(committed[-1:], cache)
        index = len(committed) - len(prompt_ids)
        committed += chooser.choose(output.logits_RV, [index], [committed], best=output.best)
        features += [] if output.features_RF is None else [output.features_RF]
        if len(committed) >= limit or committed[-1] in end_ids:
            break
        laws += laws_of_rows(output.logits_RV)
    rows = TargetRows(torch.cat(features) if features else None, laws)
    return committed[len(prompt_ids) :], rows
