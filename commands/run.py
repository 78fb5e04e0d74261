"""A run of policy training: its record, and the environments and settings that its flags name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

import envs  # noqa: F401 (registers the environments)
from configs.schema import Config
from decoding.artifacts import read_json
from decoding.controller import Controller, FixedController
from decoding.decoder import SpeculativeDecoder
from decoding.exported import Constant, ExportedController, Network, PolicyInfo
from decoding.features import DepthFeatures, SizeFeatures
from decoding.published_features import PublishedDepthFeatures, PublishedSizeFeatures, drafted_nodes
from decoding.session import Session
from decoding.workload import Request
from envs.live import OpenSession
from envs.partners import UniformDepth
from policies.co_training import KINDS, CoTraining
from policies.ppo import PPOSettings

INFO_FILE = "training.json"


def training_record(out: Path) -> dict[str, Any]:
    """What an earlier start wrote of this run; empty if there was none."""
    path = out / INFO_FILE
    if not path.exists():
        return {}
    record = read_json(path, "training record")
    if type(record.get("seed")) is not int or not isinstance(record.get("run"), dict):
        raise ValueError(f"training record {path} is damaged: remove it")
    return record


def open_request(
    decoder: SpeculativeDecoder, request: Request, config: Config, tokens: int, seed: int
) -> Session:
    """A session that answers the request's first turn with at most `tokens` tokens."""
    return decoder.open_session(
        decoder.as_user(request.turns[0]), max_new_tokens=tokens, seed=seed, **config.sampling.law
    )


def partner_shape(config: Config) -> tuple[int, int]:
    """Depth and size of the fixed controller that a policy learns beside."""
    return config.policy.partner_depth, config.policy.partner_size


def ppo_settings(config: Config, kind: str) -> PPOSettings:
    """How the policy of `kind`, depth or size, is trained."""
    values = getattr(config.policy, kind).model_dump()
    values.pop("verification_sizes", None)
    return PPOSettings(**values)


def co_training(config: Config, out: Path, seed: int, run: dict[str, Any]) -> CoTraining:
    """The turns of both policies, in folders of `out/training`."""
    settings = {kind: ppo_settings(config, kind) for kind in KINDS}
    return CoTraining(out / "training", settings, seed, run, config.policy.rounds)


def depth_features(config: Config) -> DepthFeatures:
    """What the depth policy sees, in training and where it is exported to."""
    chosen = PublishedDepthFeatures if config.policy.features == "published" else DepthFeatures
    return chosen(config.draft.beam_width, config.draft.max_depth)


def size_features(config: Config) -> SizeFeatures:
    """What the size policy sees, likewise."""
    deepest = config.draft.max_depth
    if config.policy.features == "published":
        return PublishedSizeFeatures(drafted_nodes(config.draft.beam_width, deepest), deepest)
    return SizeFeatures(config.policy.size.verification_sizes[-1], deepest)


def make_environment(
    kind: str, config: Config, open_session: OpenSession, partner: Controller
) -> gymnasium.Env:
    """The environment of `kind`, depth or size, in which the partner takes the other decision."""
    shape: dict[str, Any] = {"max_depth": config.draft.max_depth, "reward": config.policy.reward}
    if kind == "depth":
        shape |= {"beam_width": config.draft.beam_width, "features": depth_features(config)}
    else:
        sizes = config.policy.size.verification_sizes
        shape |= {"verification_sizes": sizes, "features": size_features(config)}
    return gymnasium.make(
        f"draftpace/{kind.capitalize()}-v0",
        disable_env_checker=True,  # it is checked by the tests; here it would only slow every step
        open_session=open_session,
        partner=partner,
        **shape,
    )


def usual_partner(kind: str, config: Config) -> Controller:
    """Who takes the other decision until there is a policy for it."""
    if kind == "size" and config.policy.partner_depths == "uniform":
        return UniformDepth(config.draft.max_depth)
    return FixedController(*partner_shape(config))


def frozen_half(
    kind: str, partner: Network, config: Config, decoder: SpeculativeDecoder
) -> ExportedController:
    """The other policy, run as it decodes: greedily, on its own features."""
    info = policy_info(config, decoder, {}, Constant(*partner_shape(config)))
    if kind == "size":
        return ExportedController(info, partner, None)
    return ExportedController(info, None, partner)


def run_identity(config: Config, decoder: SpeculativeDecoder, material: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint must have been trained with, besides its own settings and seed; `material`: of the
    sessions."""
    whole = config.model_dump(mode="json")
    return {
        "draft": whole["draft"],
        "sampling": whole["sampling"],
        "workload": whole["workload"],
        "partner": list(partner_shape(config)),
        "partner_depths": config.policy.partner_depths,
        "features": config.policy.features,
        "verification_sizes": config.policy.size.verification_sizes,
        "reward": config.policy.reward,
        "device": decoder.target.device.type,
        "dtype": str(decoder.target.dtype),
        "target": decoder.target.fingerprint(),
        "drafter": decoder.drafter.fingerprint(),
        **material,
    }


def policy_info(
    config: Config, decoder: SpeculativeDecoder, validation: dict[str, Any], fallback: Constant
) -> PolicyInfo:
    """What an exported policy says of itself."""
    sizes = tuple(config.policy.size.verification_sizes)
    return PolicyInfo(
        depth_features=depth_features(config),
        size_features=size_features(config),
        verification_sizes=sizes,
        fingerprints={
            "target": decoder.target.fingerprint(),
            "drafter": decoder.drafter.fingerprint(),
            "tokenizer": decoder.model.tokenizer_fingerprint(),
        },
        device=decoder.target.device.type,
        dtype=str(decoder.target.dtype).removeprefix("torch."),
        training=config.model_dump(mode="json"),
        validation=validation,
        fallback=fallback,
        calibration=decoder.drafter.calibration,
    )
