"""`train.py export`: the trained policy as a folder that a decoder loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from rich.console import Console

from commands.cycle_policy import POLICY_WEIGHTS
from commands.run import INFO_FILE, co_training, make_environment, training_record, usual_partner
from configs.schema import Config
from decoding.artifacts import load_tensors
from decoding.exported import PolicyInfo
from decoding.exported_cycle import KIND, CyclePolicyInfo
from decoding.session import Session
from decoding.whole_folder import restore
from policies.export import export_cycle, export_policy, network_of_layers
from policies.masked_ppo import deciding_layers

# What a policy is made of; the rest says how it is recorded, measured and compared.
_TRAINED_WITH = ("seed", "model", "sampling", "draft", "policy")
_LOOKED_AT = {"policy.cycle.reachable_bound"}  # nothing is learned from it
_NAMED = 3  # differences in a message


def export(config: Config | None, out: Path) -> None:
    """Write the trained policy to `out/policy`, which a decoder loads.

    Args:
        config: what the user gave, which must be what the policy was trained with; None: nothing.
    """
    folder = out / "policy"
    restore(folder)  # before anything can fail: a killed export is undone
    record = training_record(out)
    if not record:
        raise ValueError(
            f"{out} holds no training ({INFO_FILE} is not there): train.py policy with --out {out} makes one"
        )
    if "info" not in record:
        raise ValueError(
            f"{out / INFO_FILE} says of no finished training: the train.py policy command that began it goes"
            " on with it"
        )
    cycle = isinstance(record["info"], dict) and record["info"].get("kind") == KIND
    try:
        info = (CyclePolicyInfo if cycle else PolicyInfo).from_json(record["info"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{out / INFO_FILE} is damaged ({error}): remove it, run train.py policy") from None
    if config is not None:
        check_same_training(config, info.training, record["seed"])
    if isinstance(info, CyclePolicyInfo):
        _export_cycle(info, out, folder)
    else:
        _export_pair(_trained_with(info, config), info, record, out, folder)
    print(f"wrote {folder}: decode with python -m decoding PROMPT --policy {folder}")


def check_same_training(config: Config, trained: Mapping[str, Any], seed: int) -> None:
    """ValueError if the configuration says anything of the policy that its training does not: an export can
    change none of it."""
    given = config.model_dump(mode="json")
    # An older training knows less, and one without a seed of its own had one that was drawn.
    known = {name: trained[name] for name in _TRAINED_WITH if name in trained} | {"seed": seed}
    given["seed"] = seed if config.seed is None else config.seed
    found = [
        f"{key} is {mine!r}, was {theirs!r}"
        for key, mine, theirs in _differences(given, known)
        if key not in _LOOKED_AT
    ]
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise ValueError(
            f"an export is of what was trained, which had another configuration ({'; '.join(found[:_NAMED])}"
            f"{more}): leave --config and --set out"
        )


def _differences(
    given: Mapping[str, Any], known: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """Key and both values wherever they differ, of what both have."""
    found = []
    for key in known:
        if key not in given:
            continue
        mine, theirs = given[key], known[key]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += _differences(mine, theirs, f"{prefix}{key}.")
        elif mine != theirs:
            found.append((prefix + key, mine, theirs))
    return found


def _trained_with(info: PolicyInfo, config: Config | None) -> Config:
    """The recorded configuration; if other code wrote it the given one, which is the same where it counts."""
    try:
        return Config.model_validate(dict(info.training))
    except ValidationError as error:
        if config is not None:
            return config
        raise ValueError(
            f"the training's configuration is not understood ({error.errors()[0]['msg']}): give the --config"
            " and --set that it was trained with"
        ) from None


def _export_pair(config: Config, info: PolicyInfo, record: dict[str, Any], out: Path, folder: Path) -> None:
    """Two networks, of their last checkpoints."""

    def never(rng: np.random.Generator) -> Session:
        raise AssertionError("an export decodes nothing")

    turns = co_training(config, out, record["seed"], record["run"])
    chosen = record.get("chosen", {})
    models = [
        turns.load(chosen.get(kind, kind), make_environment(kind, config, never, usual_partner(kind, config)))
        for kind in ("depth", "size")
    ]
    export_policy(folder, models[0], models[1], info)


def _export_cycle(info: CyclePolicyInfo, out: Path, folder: Path) -> None:
    """The one that takes every decision."""
    file = out / "training" / POLICY_WEIGHTS
    weights = load_tensors(file, "trained policy")
    try:
        layers = list(deciding_layers(weights))
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        raise ValueError(f"trained policy {file} is damaged ({error}): run train.py policy again") from None
    export_cycle(folder, network_of_layers(layers), info)
    for warning in info.collapse:
        Console().print(f"collapsed: {warning}", style="bold red", markup=False)
