"""What a training was given, looked at before the minutes of recording and measuring begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from commands.profile import conditions, fingerprints
from commands.recorded import (
    check_levels,
    choices_of,
    headers,
    live_requests,
    profile_paths,
    recording_config,
    recording_folders,
    tokens_of,
)
from commands.same_models import check_extra_layers, check_same
from commands.traces import chosen_prompts
from configs.schema import Config
from decoding.decoder import SpeculativeDecoder
from decoding.machine import usual_threads
from decoding.profile import CostProfile
from decoding.trace_folder import read_traces


def check_given(config: Config, decoder: SpeculativeDecoder) -> list[str]:
    """ValueError for what can be known to be wrong before the minutes of recording and measuring begin; else
    a warning for each condition that a given profile was not measured in."""
    given, mine = config.policy.cycle, fingerprints(decoder)
    depth = config.draft.max_depth
    for path in (given.traces, given.validation_traces):
        if path is None:
            depth = min(depth, config.traces.draft_depth)
            continue
        check_recording(path, mine)
        depth = min(depth, *(header.draft_depth for header in headers(path)))
    if given.validation_traces is None:
        chosen_prompts(decoder, recording_config(config, "validation"))
    warnings = []
    for path in profile_paths(config):
        profile = CostProfile.load(path)
        check_same(profile.fingerprints, mine, f"profile {path}", "this model")
        check_extra_layers(profile, config)
        check_levels(profile, depth, f"profile {path}")
        warnings += [f"{path}: {one}" for one in other_conditions(profile, config, decoder)]
    if given.live_decisions:
        live_requests(config, decoder)
    return warnings


def other_conditions(profile: CostProfile, config: Config, decoder: SpeculativeDecoder) -> list[str]:
    """In which ways the profile's costs may not be those of this machine and drafter. It may be of another
    temperature: a recording takes the nearest."""
    about = profile.conditions
    threads = decoding_threads(config)
    # One that fits is taken as the one that will decode.
    now = conditions(config, decoder, about.threads if about.threads in threads else threads[0])
    found = profile.check_matches(profile.fingerprints, replace(now, temperature=about.temperature))
    if about.drafter != now.drafter:
        found.append(
            f"the profile was measured with drafter {about.drafter}, this is {now.drafter}: its times may not"
            " fit"
        )
    return found


def decoding_threads(config: Config) -> list[int]:
    """With how many threads the policy may decode: what `python -m decoding` takes here, and the
    configuration's own. These alone where a live phase decodes with them; else `threads` may be of the
    training, to which a profile's times say nothing."""
    own = [] if config.threads is None else [config.threads]
    return own if own and config.policy.cycle.live_decisions else [usual_threads(), *own]


def check_recording(folder: Path, mine: Mapping[str, str]) -> None:
    """ValueError unless every recording in the folder was made with these models, scores included, and says
    how."""
    for one in recording_folders(folder):
        header, _ = read_traces(one)
        check_same(header.fingerprints, mine, f"recording {one}", "this model")
        choices_of(header), tokens_of(header)
        if header.fingerprints["drafter"] != mine["drafter"]:
            raise ValueError(
                f"recording {one} is of drafter {header.fingerprints['drafter']}, this is {mine['drafter']}:"
                " record its texts, with the same beam, lookup and draft.calibrated"
            )
