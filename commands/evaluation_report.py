"""What an evaluation found, as a report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from commands.evaluation_arms import AGAIN, BEST, LEARNED, OVERRIDDEN, SECOND
from commands.evaluation_replay import ReplayStage
from commands.live_part import Plan
from commands.recorded import recording_folders
from configs.schema import Config
from decoding.artifacts import read_json
from decoding.decoder import SpeculativeDecoder
from decoding.exported_cycle import Exported, ExportedCycle
from decoding.records import CycleRecord
from decoding.trace_folder import read_traces
from decoding.workload import Request
from evaluation.arm_results import Roles
from evaluation.block_store import Kept
from evaluation.headroom import share_of_saving
from evaluation.reliability import node_predictions, reliability
from evaluation.replayed import replay_section
from evaluation.report import build_report, describe_workload
from evaluation.schema import Bound, Models, Report, SamplingUsed
from evaluation.schema_parts import CrossCheck, Regime, ReliabilityBin
from evaluation.strips import strips

# Texts whose drafted nodes fill the reliability table: enough for its bins, and read in a second or two.
RELIABILITY_TEXTS = 12


def report_of(
    config: Config,
    decoder: SpeculativeDecoder,
    requests: Sequence[Request],
    stage: ReplayStage,
    plan: Plan,
    kept: Mapping[int, Kept],
    policy: Exported | None,
    out: Path,
) -> Report:
    """From replay, live blocks and the policy; `requests` are the main arms', `out` the report's folder."""
    observations = [row for block in kept.values() for row in block.observations]
    # The rest comes last: where time ran out before, nothing is known of it.
    decoded = {row.arm for row in observations}
    arms = [arm for arm in plan.arms if arm.name in decoded]
    names = {arm.name for arm in arms}
    roles = Roles(
        best=tuple(name for name in (BEST, SECOND) if name in names),
        again=AGAIN if {AGAIN, BEST} <= names else None,
        overridden=OVERRIDDEN if {OVERRIDDEN, BEST} <= names else None,
        rest=frozenset(arm.name for arm in arms if arm.rest),
        repeats=config.evaluation.repeats,
        about={arm.name: (arm.source, arm.tuned) for arm in arms},
    )
    records: dict[tuple[str, int], Sequence[CycleRecord]] = {
        (observation.arm, observation.block): cycles
        for block in kept.values()
        for observation, cycles in zip(block.observations, block.records, strict=True)
    }
    given = config.evaluation
    law = {name: value for name, value in config.sampling.law.items() if name != "temperature"}
    temperatures = given.used_temperatures(config.sampling.temperature)
    learned = next((arm.name for arm in plan.arms if arm.kind == "learned"), None)
    rules = plan.rules
    more: dict[str, Any] = {
        **shown_files(config),
        "replay": _replay(config, stage, plan.seed),
        "bound": _bound(stage),
        "collapse": _collapse(policy),
        "reliability": _reliability(stage),
        "strips": strips(learned, kept, decoder.tokenizer.decode) if learned else [],
        "reruns": sum(block.attempts > 1 for block in kept.values()),
        "disturbed": sum(block.other_cores > rules.other_cores for block in kept.values()),
        "forced_text": rules.forced > 0,
        "command": shlex.join(
            ["python", "evaluate.py", "--from", str(out / "report.json"), "--out", f"{out}-again"]
        ),
        "blocks": len(kept),
        "blocks_planned": len(plan.blocks),
        # The main policy also where its own arm is not decoded: all arms draft with its scores.
        "policy_folders": ({LEARNED: plan.policy} if plan.policy else {})
        | {arm.name: arm.how["policy"] for arm in plan.arms if arm.kind == "learned"},
    }
    return build_report(
        arms,
        observations,
        workload=describe_workload(
            config.model_dump(mode="json")["workload"]["files"], "test", requests, given.repeats
        ),
        models=models_used(decoder),
        dtype=str(decoder.target.dtype).removeprefix("torch."),
        sampling=SamplingUsed(temperatures=temperatures, max_new_tokens=given.max_new_tokens, **law),
        config=config.model_dump(mode="json"),
        policy=policy.info.to_json() if policy else None,
        seeds={"noise": plan.seed, "order": plan.seed, "bootstrap": plan.seed},
        rng=np.random.default_rng([plan.seed, 3]),
        device=decoder.target.device,
        confidence=given.confidence,
        roles=roles,
        records=records,
        more=more,
    )


def shown_files(config: Config) -> dict[str, list[Any]]:
    """Sections of a report that other commands measured; ValueError names a file that holds no such rows."""
    found: dict[str, list[Any]] = {}
    kinds: tuple[tuple[str, Path | None, type[CrossCheck] | type[Regime]], ...] = (
        ("cross_check", config.evaluation.cross_check, CrossCheck),
        ("regimes", config.evaluation.regimes, Regime),
    )
    for name, path, kind in kinds:
        if path is None:
            continue
        rows = read_json(path, f"evaluation.{name}").get(name)
        try:
            found[name] = TypeAdapter(list[kind]).validate_python(rows)  # type: ignore[valid-type]
        except ValidationError as error:
            said = error.errors(include_url=False)[0]
            where = ".".join(map(str, said["loc"]))
            raise ValueError(
                f"evaluation.{name} {path} holds no such rows ({where or name}: {said['msg']}): make it anew"
            ) from None
    return found


def models_used(decoder: SpeculativeDecoder) -> Models:
    """Names and fingerprints of what decodes."""
    return Models(
        target=decoder.model.name,
        drafter=decoder.drafter.name,
        target_fingerprint=decoder.target.fingerprint(),
        drafter_fingerprint=decoder.drafter.fingerprint(),
        tokenizer_fingerprint=decoder.model.tokenizer_fingerprint(),
        path="eager" if decoder.target.fast is None else "fast",
    )


def _replay(config: Config, stage: ReplayStage, seed: int) -> Any:
    return replay_section(
        stage.texts,
        stage.arms,
        stage.grid,
        best=stage.best[:2],
        warnings=stage.warnings,
        rng=np.random.default_rng([seed, 4]),
        confidence=config.evaluation.confidence,
        drafter=stage.drafter,
        lookup_depth=config.draft.lookup_depth,
    )


def _bound(stage: ReplayStage) -> Bound | None:
    """What the learned arm saves of what the bounds save, against the best constant in hindsight."""
    seconds = {arm.name: float(arm.seconds_T.sum()) for arm in stage.arms}
    learned = next((arm.name for arm in stage.arms if arm.kind == "learned"), None)
    if learned is None:
        return None
    best = min(float(seconds_T.sum()) for seconds_T in stage.grid.values())
    shares = {
        name: share_of_saving(best, seconds[learned], seconds[name]) if name in seconds else None
        for name in ("reachable", "clairvoyant")
    }
    return Bound(reachable_share=shares["reachable"], clairvoyant_share=shares["clairvoyant"])


def _collapse(policy: Exported | None) -> dict[str, Any] | None:
    if not isinstance(policy, ExportedCycle):
        return None
    return {"found": list(policy.info.collapse), "validation": dict(policy.info.validation)}


def _reliability(stage: ReplayStage) -> list[ReliabilityBin]:
    """Of the scores of drafted nodes, on some of the test texts."""
    positions = [
        position
        for folder in recording_folders(stage.folders[0])
        for text in islice(read_traces(folder)[1], RELIABILITY_TEXTS)
        for position in text.positions
    ]
    predicted_N, happened_N = node_predictions(positions)
    if not len(predicted_N):
        return []
    names = {"count": "nodes", "predicted": "promised", "happened": "came"}
    return [
        ReliabilityBin(**{names.get(name, name): value for name, value in asdict(one).items()})
        for one in reliability(predicted_N, happened_N).bins
    ]
