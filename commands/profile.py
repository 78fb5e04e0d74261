"""`train.py profile`: what the parts of a cycle cost here, checked on cycles that were held out."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from commands.decoder import load_decoder
from commands.profile_table import print_profile
from configs.command import chosen_seed, progress
from configs.schema import Config
from decoding.check_profile import profile_error
from decoding.decoder import SpeculativeDecoder
from decoding.fit_profile import fit_profile
from decoding.machine import device_name, use_threads
from decoding.measure_profile import check_contexts, measure_cycles
from decoding.profile import PROFILE_FILE, Conditions, CostProfile
from decoding.profile_plan import row_counts
from decoding.sampling import Sampling
from decoding.timed_cycle import TimedCycle


def profile(config: Config, out: Path) -> None:
    """Write `profile.json` into `out`, and print it with its error on held-out cycles."""
    settings = config.profile
    threads = use_threads(config.threads)
    decoder = load_decoder(config)
    check_contexts(decoder, settings.contexts)
    seed = chosen_seed(config)
    sizes = [*config.policy.size.verification_sizes, *config.evaluation.verification_sizes]
    print(f"profiling {decoder.model.name} with {decoder.drafter.name}, {threads} threads")
    with progress("measuring") as show:
        cycles = measure_cycles(
            decoder,
            contexts=settings.contexts,
            rows=row_counts(settings.max_size, sizes),
            max_depth=config.draft.max_depth,
            rounds=settings.rounds,
            sampling=Sampling(**config.sampling.law),
            rng=np.random.default_rng(seed),
            show=show,
        )
    about = conditions(config, decoder, threads)
    fitted = fit_profile(cycles, settings.contexts, fingerprints(decoder), about)
    checked = with_note(fitted, cycles, config, seed)
    checked.save(out)
    print_profile(checked, Console())
    print(f"wrote {out / PROFILE_FILE}")


def fingerprints(decoder: SpeculativeDecoder) -> dict[str, str]:
    """Of the models that a profile belongs to."""
    return {
        "target": decoder.target.fingerprint(),
        "drafter": decoder.drafter.fingerprint(),
        "tokenizer": decoder.model.tokenizer_fingerprint(),
    }


def conditions(config: Config, decoder: SpeculativeDecoder, threads: int) -> Conditions:
    """What its costs hold for beside the models."""
    lookup_alone = decoder.drafter.name == "ngram"
    return Conditions(
        device=device_name(decoder.target.device),
        dtype=str(decoder.target.dtype).removeprefix("torch."),
        path="eager" if decoder.target.fast is None else "fast",
        threads=threads,
        temperature=config.sampling.temperature,
        drafter=decoder.drafter.name,
        beam_width=None if lookup_alone else config.draft.beam_width,
    )


def with_note(fitted: CostProfile, cycles: list[TimedCycle], config: Config, seed: int) -> CostProfile:
    """The profile with how it was measured, and its error on the cycles that the fit has not seen."""
    error = profile_error(fitted, [one for one in cycles if one.held_out])
    calm = profile_error(fitted, [one for one in cycles if one.held_out and not one.disturbed])
    extra = config.model.extra_layers
    return replace(
        fitted,
        note={
            "cycles": sum(not one.held_out for one in cycles),
            "disturbed_share": sum(one.disturbed for one in cycles) / len(cycles),
            "rounds": config.profile.rounds,
            "seed": seed,
            "sampling": config.sampling.law,
            "held_out": None if error is None else asdict(error),
            "held_out_undisturbed": None if calm is None else asdict(calm),
            **({"synthetic": f"{extra} layers that add zero"} if extra else {}),
        },
    )
