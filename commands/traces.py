"""`train.py traces`: recordings that tell what every depth and size would have accepted, place by place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from commands.decoder import load_decoder
from configs.command import chosen_seed, progress
from configs.schema import Config
from decoding.controller import RootChoice
from decoding.decoder import SpeculativeDecoder
from decoding.machine import use_threads
from decoding.noise import NoiseStream
from decoding.recording import Prompt, Recording, record
from decoding.sampling import Sampling
from decoding.self_text import read_prompts
from decoding.trace_file import TraceHeader
from decoding.trace_folder import SHARD_TEXTS, count_drafts, recorded_seed, write_traces
from decoding.workload import load_workload, select


def record_traces(config: Config, out: Path, keep: Callable[[], None] = lambda: None) -> None:
    """One recording for each temperature, in folders of `out` that are named after them. `keep` is called
    after every shard."""
    settings = config.traces
    folders = {temperature: out / f"T{temperature:g}" for temperature in settings.temperatures}
    if len(set(folders.values())) < len(settings.temperatures):
        raise ValueError(f"traces.temperatures = {settings.temperatures} has two of one name: leave one out")
    # Without a seed of its own the command goes on with the one that it began with.
    recorded = [seed for folder in folders.values() if (seed := recorded_seed(folder)) is not None]
    seed = recorded[0] if recorded and config.seed is None else chosen_seed(config)
    threads = use_threads(config.threads)
    decoder = load_decoder(config)
    prompts = chosen_prompts(decoder, config)
    # A merged drafter offers its parts alone as well.
    offered = decoder.drafter.start(NoiseStream(0, [0]), 0.0, 1).root_choices
    choices = tuple(choice for choice in offered if choice != RootChoice.PLAIN)
    print(f"recording {len(prompts)} prompts at {settings.temperatures}, seed {seed}, {threads} threads")
    for temperature, folder in folders.items():
        sampling = Sampling(**config.sampling.law | {"temperature": temperature})
        recording = Recording(
            sampling, seed, settings.max_new_tokens, settings.draft_depth, choices, settings.batch
        )
        make = partial(record, decoder.target, decoder.drafter, decoder.model.end_ids, recording=recording)
        with progress(f"T {temperature:g}") as show:
            for now in write_traces(folder, header_of(decoder, recording), prompts, make):
                show(now.texts, now.of, str(now))
                if now.texts % SHARD_TEXTS == 0:
                    keep()
        print(f"wrote {folder}: {count_drafts(folder) // len(choices)} positions; in this run {now}")


def chosen_prompts(decoder: SpeculativeDecoder, config: Config) -> list[Prompt]:
    """Those of texts that the target wrote, else of the workload's split."""
    settings = config.traces
    if settings.texts is not None:
        vocabulary = decoder.target.vocabulary_size
        found = [Prompt(*one) for one in read_prompts(settings.texts, vocabulary, settings.earlier_texts)]
        found = [one for one in found if len(one.token_ids) < decoder.target.context_limit]
        return found if settings.prompts is None else found[: settings.prompts]
    workload = load_workload(config.workload.files)
    picks = {"categories": config.workload.categories, "languages": config.workload.languages}
    requests = select(workload, settings.split, settings.prompts, **picks)
    decoder.check_prompts({request.question_id: request.turns[0] for request in requests})
    return [
        Prompt(
            request.question_id,
            tuple(decoder.encode(decoder.as_user(request.turns[0]))),
            request.category,
            request.language,
        )
        for request in requests
    ]


def header_of(decoder: SpeculativeDecoder, recording: Recording) -> TraceHeader:
    """Of every shard."""
    return TraceHeader(
        fingerprints={
            "target": decoder.target.fingerprint(),
            "drafter": decoder.drafter.fingerprint(),
            "tokenizer": decoder.model.tokenizer_fingerprint(),
        },
        drafter=decoder.drafter.name,
        draft_depth=recording.draft_depth,
        temperature=recording.sampling.temperature,
        seed=recording.seed,
        dtype=str(decoder.target.dtype).removeprefix("torch."),
        note={
            "sampling": law_of(recording.sampling),
            "max_new_tokens": recording.max_new_tokens,
            "choices": [choice.name.lower() for choice in recording.choices],
            "path": "eager" if decoder.target.fast is None else "fast",
        },
    )


def law_of(sampling: Sampling) -> dict[str, float | int | None]:
    """What shapes a text beside the temperature."""
    return {name: getattr(sampling, name) for name in ("top_k", "top_p", "min_p", "repetition_penalty")}
