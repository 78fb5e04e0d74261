"""Flags of the default preset's commands, scaled down to tiny models."""

from __future__ import annotations

from pathlib import Path

import train
from tests.test_traces_command import short_workload

PROFILE = Path("profile") / "T0" / "profile.json"

SMALL: dict[str, object] = {
    "seed": 1,
    "threads": 1,
    "model.dtype": "float32",
    "draft.beam_width": 2,
    "draft.max_depth": 3,
    "draft.lookup_depth": 3,
    "evaluation.draft_depths": "[1]",
    "evaluation.verification_sizes": "[4]",
    "evaluation.prompts": 2,
    "evaluation.max_new_tokens": 8,
    "evaluation.rules": "[]",
    "evaluation.other_cores": 100,
    "sampling.max_new_tokens": 12,
    "workload.train_prompts": 3,
    "workload.validation_prompts": 2,
    "policy.partner_depth": 2,
    "policy.cycle.verification_sizes": "[1,2,4]",
    "policy.cycle.lanes": 4,
    "policy.cycle.seeds": 2,
    "policy.cycle.full_information.rounds": 2,
    "policy.cycle.full_information.epochs": 2,
    "policy.cycle.ppo.timesteps": 96,
    "policy.cycle.ppo.rollout_steps": 32,
    "policy.cycle.ppo.minibatch_size": 16,
    "policy.cycle.ppo.epochs": 2,
    "policy.cycle.ppo.policy_net": "[8]",
    "policy.cycle.ppo.value_net": "[8]",
    "traces.temperatures": "[0.0]",
    "traces.draft_depth": 3,
    "traces.prompts": 3,
    "traces.max_new_tokens": 12,
    "profile.contexts": "[40,120]",
    "profile.max_size": 8,
    "profile.rounds": 3,
}


def flags(folder: Path, head: Path, out: Path, **changed: object) -> list[str]:
    """`folder` and `head` are the models; `changed` with __ for a dot."""
    values = SMALL | {"model.target": folder, "model.drafter": f"merged:{head}"}
    values["workload.files"] = f"[{short_workload(folder / 'workload.jsonl')}]"
    values |= {key.replace("__", "."): value for key, value in changed.items()}
    return [*(f"--set={key}={value}" for key, value in values.items()), "--out", str(out)]


def made_in(folder: Path, head: Path, root: Path) -> Path:
    """Recordings and a profile where a run would have made them."""
    for split in ("train", "validation"):
        out = flags(folder, head, root / "traces" / split, traces__split=split)
        assert train.main(["traces", *out]) == 0
    assert train.main(["profile", *flags(folder, head, (root / PROFILE).parent)]) == 0
    return root


def given(place: Path) -> dict[str, object]:
    """What a run need not make itself, from a folder of one that did."""
    return {
        "policy__cycle__traces": place / "traces" / "train",
        "policy__cycle__validation_traces": place / "traces" / "validation",
        "policy__cycle__profiles": place / "profile" / "T0" / "profile.json",
    }
