"""`train.py export`: the trained pair as a folder that a decoder loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from commands.cycle_policy import POLICY_WEIGHTS
from commands.run import INFO_FILE, co_training, make_environment, training_record, usual_partner
from configs.schema import Config
from decoding.artifacts import load_tensors
from decoding.exported import PolicyInfo
from decoding.exported_cycle import KIND, CyclePolicyInfo
from decoding.session import Session
from policies.export import export_cycle, export_policy, network_of_layers
from policies.masked_ppo import deciding_layers


def export(config: Config, out: Path) -> None:
    """Write the trained pair to `out/policy`, which a decoder loads."""
    record = training_record(out)
    if "info" not in record:
        raise ValueError(f"{out / INFO_FILE} says of no finished training: run train.py policy first")
    if isinstance(record["info"], dict) and record["info"].get("kind") == KIND:
        export_trained_cycle(record["info"], out)
        return
    try:
        info = PolicyInfo.from_json(record["info"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{out / INFO_FILE} is damaged ({error}): remove it, run train.py policy") from None

    def never(rng: np.random.Generator) -> Session:
        raise AssertionError("an export decodes nothing")

    turns = co_training(config, out, record["seed"], record["run"])
    chosen = record.get("chosen", {})
    models = [
        turns.load(chosen.get(kind, kind), make_environment(kind, config, never, usual_partner(kind, config)))
        for kind in ("depth", "size")
    ]
    export_policy(out / "policy", models[0], models[1], info)
    print(f"wrote {out / 'policy'}: decode with python -m decoding PROMPT --policy {out / 'policy'}")


def export_trained_cycle(raw: dict[str, Any], out: Path) -> None:
    """The same of the policy that takes every decision."""
    try:
        info = CyclePolicyInfo.from_json(raw)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{out / INFO_FILE} is damaged ({error}): remove it, run train.py policy") from None
    file = out / "training" / POLICY_WEIGHTS
    weights = load_tensors(file, "trained policy")
    try:
        layers = list(deciding_layers(weights))
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        raise ValueError(f"trained policy {file} is damaged ({error}): run train.py policy again") from None
    export_cycle(out / "policy", network_of_layers(layers), info)
    for warning in info.collapse:
        Console().print(f"collapsed: {warning}", style="bold red", markup=False)
    print(f"wrote {out / 'policy'}: decode with python -m decoding PROMPT --policy {out / 'policy'}")
