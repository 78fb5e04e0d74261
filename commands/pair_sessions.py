"""What a pair of policies is trained and validated on: requests that are decoded, or recordings of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from commands.headroom import check_pair, mismatches
from commands.profile import fingerprints
from commands.run import open_request
from configs.schema import Config
from decoding.artifacts import sha256_file
from decoding.decoder import SpeculativeDecoder
from decoding.profile import CostProfile
from decoding.published_features import drafted_nodes
from decoding.recorded_texts import RecordedTexts
from decoding.replay_session import ReplaySession
from decoding.session import Session
from decoding.trace_folder import recording_identity
from decoding.workload import Request, load_workload, select

AnySession = Session | ReplaySession


@dataclass(frozen=True)
class PairSessions:
    """Where sessions come from.

    Attributes:
        what: the training material, for people.
        identity: what a checkpoint must have been trained on; JSON values.
        open_next: a session to learn in, drawn with the generator.
        reference: the first two of them.
        held_out: what is validated on.
        open_held_out: a session for one of these.
        live: whether they decode; what does not needs no warming up.
    """

    what: str
    identity: dict[str, Any]
    open_next: Callable[[np.random.Generator], AnySession]
    reference: Callable[[], Sequence[AnySession]]
    held_out: Sequence[Request]
    open_held_out: Callable[[Request], AnySession]
    live: bool


def pair_sessions(config: Config, decoder: SpeculativeDecoder, seed: int) -> PairSessions:
    """Replay where the configuration names recordings, else decoding."""
    if config.policy.recordings is None:
        return _decoded(config, decoder, seed)
    return _replayed(config, decoder)


def _decoded(config: Config, decoder: SpeculativeDecoder, seed: int) -> PairSessions:
    workload = load_workload(config.workload.files)
    picks = {"categories": config.workload.categories, "languages": config.workload.languages}
    requests = select(workload, "train", config.workload.train_prompts, **picks)
    held_out = select(workload, "validation", config.workload.validation_prompts, **picks)
    decoder.check_prompts({request.question_id: request.turns[0] for request in [*requests, *held_out]})

    def start(request: Request, tokens: int, its_seed: int) -> Session:
        return open_request(decoder, request, config, tokens, its_seed)

    tokens = config.sampling.max_new_tokens

    def open_next(rng: np.random.Generator) -> Session:
        request = requests[rng.integers(len(requests))]
        return start(request, tokens, int(rng.integers(2**32)))

    return PairSessions(
        what=f"{len(requests)} prompts",
        identity={},
        open_next=open_next,
        reference=lambda: [start(request, tokens, seed) for request in requests[:2]],
        held_out=held_out,
        open_held_out=lambda request: start(request, config.evaluation.max_new_tokens, seed),
        live=True,
    )


def _replayed(config: Config, decoder: SpeculativeDecoder) -> PairSessions:
    policy = config.policy
    if policy.validation_recordings is None or policy.profile_file is None:
        raise ValueError(
            "policy.recordings needs policy.validation_recordings and policy.profile_file beside it: "
            "train.py traces with traces.split=validation, and train.py profile, make them"
        )
    profile = CostProfile.load(policy.profile_file)
    training, held_out = _folders(policy.recordings), _folders(policy.validation_recordings)
    texts, validation = RecordedTexts(training, profile), RecordedTexts(held_out, profile)
    for recorded in (texts, validation):
        _check_recordings(config, decoder, recorded, profile)
    for warning in dict.fromkeys(one for header in texts.headers for one in mismatches(profile, header)):
        print(f"warning: {warning}", file=sys.stderr)
    numbers = {_request(validation, number): number for number in range(len(validation))}
    return PairSessions(
        what=f"{len(texts)} recorded texts",
        identity={
            "recordings": [recording_identity(folder) for folder in training],
            "profile": sha256_file(policy.profile_file),
        },
        open_next=lambda rng: texts.session(int(rng.integers(len(texts)))),
        reference=lambda: [texts.session(number) for number in range(min(2, len(texts)))],
        held_out=list(numbers),
        open_held_out=lambda request: validation.session(numbers[request]),
        live=False,
    )


def _request(texts: RecordedTexts, number: int) -> Request:
    text = texts.text(number)
    # The same question may have been recorded at several temperatures.
    name = f"{number}: {text.question_id}"
    return Request(name, (text.question_id,), text.category, text.language, text.question_id)


def _folders(paths: Path | Sequence[Path] | None) -> list[Path]:
    assert paths is not None
    return [paths] if isinstance(paths, Path) else list(paths)


def _check_recordings(
    config: Config, decoder: SpeculativeDecoder, texts: RecordedTexts, profile: CostProfile
) -> None:
    """ValueError if they are of other models, or hold less than the policies may ask for."""
    header = texts.headers[0]
    for what, given in fingerprints(decoder).items():
        if header.fingerprints[what] != given:
            raise ValueError(
                f"the recordings are of {what} {header.fingerprints[what]}, the configuration names {given}: "
                "record its texts, with the same beam and draft.calibrated"
            )
    check_pair(profile, header)
    deepest = min(header.draft_depth, *(len(table) for table in profile.levels.values()))
    if deepest < config.draft.max_depth:
        raise ValueError(
            f"recordings and profile know {deepest} draft levels, draft.max_depth is "
            f"{config.draft.max_depth}: lower it, or record and profile deeper"
        )
    # No verification is larger than the draft.
    nodes = drafted_nodes(config.draft.beam_width, config.draft.max_depth)
    largest = min(nodes, max(*config.policy.size.verification_sizes, config.policy.partner_size))
    if profile.max_size < largest:
        raise ValueError(
            f"the profile knows verifications of up to {profile.max_size} nodes, the policies use {largest}: "
            f"profile again with --set profile.max_size={largest}"
        )
