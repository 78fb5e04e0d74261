"""`train.py calibrate`: what a draft's scores mean, fitted on training prompts, checked on validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from configs.command import chosen_seed, progress
from configs.schema import Config
from decoding.artifacts import fingerprint_weights, write_json
from decoding.calibration import CALIBRATION_FILE, Calibration
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import CONFIG_FILE, EagleHead
from decoding.drafters.load import load_drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.drafters.with_lookup import BeamDrafter, HeadWithLookup
from decoding.fit_calibration import Samples, fit, observe
from decoding.machine import use_threads
from decoding.models import load_model
from decoding.noise import NoiseStream
from decoding.plain_texts import plain_texts
from decoding.sampling import Sampling
from decoding.traces import Position, record_text
from decoding.workload import Request, load_workload, select
from evaluation.reliability_table import Look, look_at, print_looks

RELIABILITY_FILE = "reliability.json"


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what plain decoding made of it at one temperature."""

    prompt_ids: list[int]
    text_ids: list[int]
    noise: NoiseStream


def calibrate(config: Config, out: Path) -> None:
    """Write `calibration.json` and `reliability.json` into `out`: best the folder of the head itself."""
    settings = config.calibration
    workload = load_workload(config.workload.files)
    picks = {"categories": config.workload.categories, "languages": config.workload.languages}
    requests = select(workload, "train", settings.prompts, **picks)
    held_out = select(workload, "validation", settings.validation_prompts, **picks)
    seed = chosen_seed(config)
    threads = use_threads(config.threads)
    model = load_model(config.model.target, config.model.device, config.model.dtype, config.model.path)
    # Without the calibration that may be there: this makes a new one, and the old may be another head's.
    drafter = load_drafter(
        config.model.drafter,
        model,
        config.draft.beam_width,
        config.draft.min_match,
        config.draft.lookup_depth,
        calibrated=False,
    )
    decoder = SpeculativeDecoder(model, drafter)
    decoder.check_prompts({request.question_id: request.turns[0] for request in [*requests, *held_out]})
    head = beam_drafter(drafter)
    check_folder(out, head)
    lookup = NgramDrafter(config.draft.min_match)
    print(f"recording {len(requests)} training prompts at {settings.temperatures}, {threads} threads")
    fits = []
    for temperature in settings.temperatures:
        samples = Samples()
        columns = columns_of(head)
        recorded = recordings(decoder, head, requests, temperature, seed, config, "recording")
        for text, positions in recorded:
            committed = [*text.prompt_ids, *text.text_ids]
            observe(samples, positions, lookup, committed, temperature, text.noise, columns)
        fits.append(fit(samples, temperature))
    calibration = Calibration(
        tuple(fits),
        {
            "target": decoder.target.text_fingerprint(),
            "drafter": head.head_fingerprint,
        },
        note={
            "prompts": len(requests),
            "max_new_tokens": settings.max_new_tokens,
            "beam_width": config.draft.beam_width,
            "dtype": str(decoder.target.dtype).removeprefix("torch."),
            "seed": seed,
        },
    )
    looks = look_before_and_after(decoder, calibration, held_out, seed, config)
    calibration.save(out)
    write_json(out / RELIABILITY_FILE, {"looks": [look.to_json() for look in looks]})
    print_looks(looks, Console())
    print(
        f"wrote {out / CALIBRATION_FILE}"
        + ("" if (out / CONFIG_FILE).exists() else ": copy it beside the head")
    )


def look_before_and_after(
    decoder: SpeculativeDecoder,
    calibration: Calibration,
    held_out: Sequence[Request],
    seed: int,
    config: Config,
) -> list[Look]:
    """How well the scores of the configured drafter fit, uncalibrated and calibrated, by temperature."""
    looks = []
    for temperature in config.calibration.temperatures:
        for name, used in (("before", None), ("after", calibration)):
            decoder.drafter.calibration = used
            recorded = recordings(decoder, decoder.drafter, held_out, temperature, seed, config, name)
            positions = [position for _, found in recorded for position in found]
            looks.append(look_at(name, temperature, positions))
    return looks


def recordings(
    decoder: SpeculativeDecoder,
    drafter: Drafter,
    requests: Sequence[Request],
    temperature: float,
    seed: int,
    config: Config,
    what: str,
) -> Iterator[tuple[Text, list[Position]]]:
    """Plain texts of the requests, and the drafts at all of their positions."""
    settings = config.calibration
    prompts = [decoder.encode(decoder.as_user(request.turns[0])) for request in requests]
    sampling = Sampling(**config.sampling.law | {"temperature": temperature})
    texts = plain_texts(
        decoder.target,
        prompts,
        sampling,
        seed,
        max_new_tokens=settings.max_new_tokens,
        end_ids=decoder.model.end_ids,
        batch=settings.batch,
    )
    with progress(f"{what} at {temperature:g}") as show:
        for done, (number, ids) in enumerate(texts, start=1):
            text = Text(prompts[number], ids, NoiseStream(seed, prompts[number]))
            positions = record_text(
                decoder.target,
                drafter,
                text.prompt_ids,
                text.text_ids,
                draft_depth=settings.draft_depth,
                temperature=temperature,
                noise=text.noise,
                keep_rows=True,
            )
            yield text, list(positions)
            show(done, len(prompts), "")


def beam_drafter(drafter: Drafter) -> BeamDrafter:
    """The head of a drafter; ValueError for a lookup alone."""
    if isinstance(drafter, HeadWithLookup):
        return drafter.head
    if isinstance(drafter, EagleDrafter | CausalLMDrafter):
        return drafter
    raise ValueError(
        f"drafter {drafter.name} has no head that a calibration could be kept with: name one, e.g. "
        f"model.drafter=merged:FOLDER (its lookup is calibrated with it)"
    )


def check_folder(out: Path, head: BeamDrafter) -> None:
    """ValueError if `out` holds another head than the one that is calibrated: it would be refused after."""
    if not (out / CONFIG_FILE).exists() or not isinstance(head, EagleDrafter):
        return
    found = fingerprint_weights(EagleHead.load(out).state_dict())
    if found != head.head_fingerprint:
        raise ValueError(
            f"--out {out} holds head {found}, the calibration is of {head.head_fingerprint}: name that head's"
            " folder, or an empty one"
        )


def columns_of(head: BeamDrafter) -> dict[int, int]:
    """Place of every id of the target that a head can draft in its rows."""
    ids = head.target_ids_V if isinstance(head, EagleDrafter) else head.ids_V
    return {token: column for column, token in enumerate(ids.tolist())}
