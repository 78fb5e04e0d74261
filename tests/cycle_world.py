"""Untrained policies of every decision with strong opinions, for the tiny merged world, and their folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from decoding.cycle_features import CycleFeatures
from decoding.decision_table import DecisionTable, decision_table, joined_tables
from decoding.decisions import Decisions
from decoding.exported_cycle import CyclePolicyInfo
from decoding.setting import Setting
from policies.export import export_cycle, network_of_layers
from tests.test_decision_walk import tokens_of
from tests.test_replay_table import traced
from tests.traced_worlds import CHOICES, DEPTH, PROMPTS, Case, world

SIZES = (1, 2, 5, 9, 24)
NAME = "merged-eagle3"
DECISIONS = Decisions(CHOICES, DEPTH, SIZES)
CASES = [Case(NAME, temperature, 1, prompt) for temperature in (0.0, 1.0) for prompt in range(len(PROMPTS))]


def case_table(case: Case, decisions: Decisions = DECISIONS) -> DecisionTable:
    """Of one text, with the features that an exported policy has: no cost ratios."""
    features = CycleFeatures(decisions.sizes, decisions.max_depth, case.temperature)
    composite = case.world.startswith("composite")
    return decision_table([traced(case)], decisions, features, tokens_of(case), composite)


@cache
def merged_table() -> DecisionTable:
    """Of all texts of the merged world."""
    return joined_tables([case_table(case) for case in CASES])


def info(**changed: object) -> CyclePolicyInfo:
    """Of a policy for the merged world's own models."""
    target, drafter = world(NAME).target, world(NAME).drafter
    values: dict[str, object] = {
        "decisions": DECISIONS,
        "features": CycleFeatures(SIZES, DEPTH),
        "fingerprints": {
            "target": target.fingerprint(),
            "drafter": drafter.fingerprint(),
            "tokenizer": "cc",
        },
        "device": "cpu",
        "dtype": "float64",
        "training": {"seed": 3},
        "validation": {"over_constant": 1.25},
        "fallback": Setting(CHOICES[0], 2, 5),
        "collapse": ("it answers alike",),
    }
    return CyclePolicyInfo(**(values | changed))  # type: ignore[arg-type]


@cache
def wild_layers(seed: int) -> nn.Sequential:
    """So opinionated that it takes every action somewhere in the merged world's texts."""
    torch.manual_seed(seed)
    table = merged_table()
    inputs = len(table.features.names)
    layers: Any = nn.Sequential(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, len(DECISIONS)))
    asked = table.allowed_PNA.any(axis=2)
    with torch.no_grad():
        layers[0].bias.normal_(0, 0.5)
        layers[2].weight.mul_(30)
        layers[2].bias.sub_(layers(torch.from_numpy(table.features_PNF[asked])).mean(dim=0))
    return layers


def exported(folder: Path, seed: int = 0, **changed: object) -> Path:
    """The folder of such a policy."""
    export_cycle(folder, network_of_layers(list(wild_layers(seed))), info(**changed))
    return folder


def decided(layers: nn.Module, features_F: np.ndarray, allowed: list[bool]) -> int:
    """What training takes greedily there."""
    with torch.no_grad():
        outputs_A = layers(torch.from_numpy(features_F)).numpy()
    return int(np.where(allowed, outputs_A, -np.inf).argmax())
