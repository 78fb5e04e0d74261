"""Observations to report.json, cycles.parquet and the table on the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from decoding.artifacts import atomic_path, write_json
from decoding.metrics import CycleSummary, merge
from decoding.workload import Request
from evaluation.block_store import CYCLES
from evaluation.machine import machine_info, versions
from evaluation.protocol import Arm, Observation
from evaluation.schema import ArmResult, ArmSlice, Machine, Models, Report, SamplingUsed, Workload
from evaluation.schema_parts import ComparisonResult, GridPoint, Json
from evaluation.statistics import CONFIDENCE, compare_all
from evaluation.verdict import verdict

UNNAMED = "(none)"  # the row of requests without a category or language


def build_report(
    arms: Sequence[Arm],
    observations: Sequence[Observation],
    *,
    workload: Workload,
    models: Models,
    dtype: str,
    sampling: SamplingUsed,
    config: Json,
    policy: Json | None,
    seeds: Mapping[str, int],
    rng: np.random.Generator,
    device: torch.device | None = None,
    confidence: float = CONFIDENCE,
) -> Report:
    """Everything that is said about a run; `rng` is for the bootstrap.

    Compared are the learned arm with the best fixed one and with plain decoding, and the best fixed one with
    plain decoding. Of several learned arms the first counts: the fastest would be a choice in hindsight.
    """
    plain = next(arm.name for arm in arms if arm.kind == "plain")
    results = {arm.name: _arm_result(arm, observations, plain) for arm in arms}
    rates = {name: result.tokens_per_second for name, result in results.items()}
    fixed = [(arm.name, arm.setting) for arm in arms if arm.setting is not None]
    best_fixed = max(fixed, key=lambda entry: rates[entry[0]], default=None)
    learned = next((arm.name for arm in arms if arm.kind == "learned"), None)
    pairs = [(learned, best_fixed[0])] if learned and best_fixed else []
    pairs += [(learned, plain)] if learned else []
    pairs += [(best_fixed[0], plain)] if best_fixed else []
    comparisons = [
        ComparisonResult(**asdict(row)) for row in compare_all(pairs, observations, rng, confidence)
    ]
    return Report(
        machine=_loaded(machine_info(device), observations),
        versions=versions(),
        models=models,
        dtype=dtype,
        sampling=sampling,
        workload=workload,
        confidence=confidence,
        arms=results,
        grid=[GridPoint(**asdict(setting), tokens_per_second=rates[name]) for name, setting in fixed],
        comparisons=comparisons,
        by_category=_by(lambda row: row.category, arms, observations, plain),
        by_language=_by(lambda row: row.language, arms, observations, plain),
        verdict=verdict(
            rates,
            comparisons,
            plain=plain,
            learned=learned,
            best_fixed=best_fixed,
            confidence=confidence,
            never_drafted=learned is not None and _never_drafted(results[learned]),
        ),
        config=config,
        policy=policy,
        seeds=dict(seeds),
    )


def describe_workload(
    files: Sequence[str], split: str, requests: Sequence[Request], repeats: int
) -> Workload:
    """What `requests`, decoded `repeats` times by every arm, are."""
    return Workload(
        files=list(files),
        split=split,
        requests=len(requests),
        groups=len({request.group for request in requests}),
        repeats=repeats,
        categories=Counter(request.category or UNNAMED for request in requests),
        languages=Counter(request.language or UNNAMED for request in requests),
    )


def write_report(out_dir: Path, report: Report, raw_records: Sequence[Mapping[str, Any]]) -> None:
    """Write `cycles.parquet` (rows of `protocol.cycle_row`), then `report.json`; each whole or not at all.

    In this order, so that a report is never without its evidence.
    """
    table = pa.Table.from_pylist(list(raw_records), schema=CYCLES)
    with atomic_path(out_dir / "cycles.parquet") as temporary:
        pq.write_table(table, temporary, compression="zstd")
    write_json(out_dir / "report.json", report.model_dump(mode="json"))


def _arm_result(arm: Arm, observations: Sequence[Observation], plain: str) -> ArmResult:
    rows = [row for row in observations if row.arm == arm.name]
    if not rows:
        raise ValueError(f"arm {arm.name!r} has no observation: nothing can be reported of it")
    texts = {_text(row): row.token_hash for row in observations if row.arm == plain}
    unequal = sum(texts[_text(row)] != row.token_hash for row in rows)
    cycles = merge(row.cycles for row in rows)
    return ArmResult(
        **_slice(cycles, len(rows), _summary(plain, observations)).model_dump(),
        kind=arm.kind,
        policy_overhead_fraction=cycles.policy_overhead,
        text_equal=not unequal,
        texts_unequal=unequal,
        acceptance_rate=list(cycles.acceptance_rate),
        seconds_by_phase=asdict(cycles.seconds),
    )


def _text(row: Observation) -> tuple[str, float, int]:
    return row.question_id, row.temperature, row.repeat


def _never_drafted(result: ArmResult) -> bool:
    return result.tau == 1 and not result.acceptance_rate


def _slice(cycles: CycleSummary, requests: int, plain: CycleSummary) -> ArmSlice:
    return ArmSlice(
        tokens_per_second=cycles.tokens_per_second,
        speedup_vs_plain=cycles.tokens_per_second / plain.tokens_per_second,
        tau=cycles.acceptance_length,
        requests=requests,
    )


def _summary(arm: str, observations: Sequence[Observation]) -> CycleSummary:
    return merge(row.cycles for row in observations if row.arm == arm)


def _by(
    key: Callable[[Observation], str | None],
    arms: Sequence[Arm],
    observations: Sequence[Observation],
    plain: str,
) -> dict[str, dict[str, ArmSlice]]:
    parts: dict[str, list[Observation]] = defaultdict(list)
    for row in observations:
        parts[key(row) or UNNAMED].append(row)
    return {
        name: {
            arm.name: _slice(
                _summary(arm.name, rows), sum(row.arm == arm.name for row in rows), _summary(plain, rows)
            )
            for arm in arms
        }
        for name, rows in sorted(parts.items())
    }


def _loaded(machine: Machine, observations: Sequence[Observation]) -> Machine:
    loads = list({row.block: row.load for row in observations}.values())
    return machine.model_copy(update={"load_mean": float(np.mean(loads)), "load_max": max(loads)})
