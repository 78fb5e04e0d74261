"""Observations to report.json, cycles.parquet and the table on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from decoding.artifacts import atomic_path, write_json
from decoding.workload import Request
from evaluation.arm_results import Records, Reported, Roles, arm_result, by_part, main_observations
from evaluation.block_store import CYCLES
from evaluation.checks import held_to, power, same_arm
from evaluation.machine import machine_info, versions
from evaluation.protocol import Observation
from evaluation.schema import ArmResult, ArmSlice, Machine, Models, Report, SamplingUsed, Workload
from evaluation.schema_parts import ComparisonResult, GridPoint, Json
from evaluation.slices import named, shared_questions, slices
from evaluation.statistics import CONFIDENCE, compare, compare_all
from evaluation.verdict import verdict

UNNAMED = named(None)  # the row of requests without a category or language


def build_report(
    arms: Sequence[Reported],
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
    roles: Roles | None = None,
    records: Records | None = None,
    more: Mapping[str, Any] | None = None,
) -> Report:
    """Everything that is said about a run; `rng` is for the bootstrap.

    Compared are the learned arm with every other main arm, and the best fixed one with plain decoding. Of
    several learned arms the first counts: the fastest would be a choice in hindsight.

    Args:
        records: cycles by arm and block.
        more: further fields of the report.
    """
    roles = roles or Roles()
    plain = next(arm.name for arm in arms if arm.kind == "plain")
    results = {arm.name: arm_result(arm, observations, plain, roles, records or {}) for arm in arms}
    for arm in arms:
        over = _over_plain(arm, plain, observations, roles, rng, confidence)
        results[arm.name] = results[arm.name].model_copy(update={"over_plain": over})
    rates = {name: result.tokens_per_second for name, result in results.items()}
    main = [arm for arm in arms if arm.name not in roles.rest]
    seen = main_observations(observations, roles)
    best = roles.best or _fastest(main, rates)
    learned = next((arm.name for arm in main if arm.kind == "learned"), None)
    rows = compare_all(pairs_of(main, plain, learned, best, roles), seen, rng, confidence)
    same = same_arm(best[0], roles.again, seen, rng) if roles.again and best else None
    comparisons = [ComparisonResult(**asdict(row)) for row in held_to(rows, same)]
    harder = _harder(best, learned, comparisons)
    shown = [(learned, one) for one in (*best, plain)] if learned else []
    return Report(
        machine=_loaded(machine_info(device), observations),
        versions=versions(),
        models=models,
        dtype=dtype,
        sampling=sampling,
        workload=workload,
        confidence=confidence,
        arms=results,
        grid=[
            GridPoint(**asdict(arm.setting), tokens_per_second=rates[arm.name])
            for arm in main
            if arm.setting is not None and arm.name != roles.again
        ],
        comparisons=comparisons,
        by_category=by_part(lambda row: row.category, main, seen, plain),
        by_language=by_part(lambda row: row.language, main, seen, plain),
        by_temperature=by_part(lambda row: row.temperature, main, seen, plain),
        slices=slices(shown, seen, rng, confidence) if shown else None,
        same_questions=by_part(lambda row: row.language, main, shared_questions(seen), plain),
        aa=same,
        power=power(learned, harder, seen, confidence=confidence) if learned and harder else None,
        overhead=_overhead(best, roles, seen, rng, confidence),
        verdict=verdict(
            rates,
            comparisons,
            plain=plain,
            learned=learned,
            best_fixed=None if harder is None else (harder, _spelled(main, harder, roles)),
            confidence=confidence,
            never_drafted=learned is not None and _never_drafted(results[learned]),
            same=same,
        ),
        config=config,
        policy=policy,
        seeds=dict(seeds),
        free_running=_free_running(arms, observations, plain, roles),
        **(more or {}),
    )


def _over_plain(
    arm: Reported,
    plain: str,
    observations: Sequence[Observation],
    roles: Roles,
    rng: np.random.Generator,
    confidence: float,
) -> ComparisonResult | None:
    """An arm over plain decoding, to look at: no claim, and outside of the claims' family."""
    if arm.name == plain:
        return None
    main = main_observations(observations, roles)
    apart = {id(row) for row in main}
    rows = [row for row in observations if id(row) not in apart] if arm.name in roles.rest else main
    found = compare(arm.name, plain, rows, rng, confidence)
    return ComparisonResult(**asdict(found) | {"claimed": False})


def _free_running(
    arms: Sequence[Reported], observations: Sequence[Observation], plain: str, roles: Roles
) -> dict[str, ArmSlice]:
    """Main arms that also decoded the rest's prompts; none if plain decoding alone did."""
    usual = {row.repeat for row in main_observations(observations, roles)}
    rows = [row for row in observations if row.repeat not in usual]
    there = {row.arm for row in rows} - roles.rest
    if there <= {plain}:
        return {}
    return by_part(lambda row: None, [arm for arm in arms if arm.name in there], rows, plain)[UNNAMED]


def pairs_of(
    arms: Sequence[Reported], plain: str, learned: str | None, best: Sequence[str], roles: Roles
) -> list[tuple[str, str]]:
    """What is compared: the claims that Holm's correction is over."""
    pairs: list[tuple[str, str]] = []
    if learned:
        others = [arm.name for arm in arms if arm.name not in (learned, plain, *best)]
        checks = (roles.again, roles.overridden)
        # Without roles a grid is decoded: its other points are no claims.
        others = [name for name in others if name not in checks] if roles.best else []
        pairs = [(learned, one) for one in (*best, plain, *others)]
    return [*pairs, (best[0], plain)] if best else pairs


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


def _fastest(arms: Sequence[Reported], rates: Mapping[str, float]) -> tuple[str, ...]:
    fixed = [arm.name for arm in arms if arm.setting is not None]
    return (max(fixed, key=lambda name: rates[name]),) if fixed else ()


def _harder(best: Sequence[str], learned: str | None, comparisons: Sequence[ComparisonResult]) -> str | None:
    """Of the best two fixed settings the one over which the gain is smaller: the headline's."""
    if not best or learned is None:
        return best[0] if best else None
    return min(
        (row for row in comparisons if row.a == learned and row.b in best), key=lambda row: row.ratio
    ).b


def _spelled(arms: Sequence[Reported], name: str, roles: Roles) -> str:
    setting = next(arm.setting for arm in arms if arm.name == name)
    assert setting is not None
    lookup = "" if setting.lookup_depth is None else f", lookup depth {setting.lookup_depth}"
    words = f"{setting.drafter}, draft depth {setting.draft_depth}{lookup}, size {setting.verification_size}"
    if roles.best:
        return f"{words}; of the best two on validation texts the harder to beat"
    return f"{words}; chosen in hindsight on these prompts, which favours it"


def _overhead(
    best: Sequence[str],
    roles: Roles,
    observations: Sequence[Observation],
    rng: np.random.Generator,
    confidence: float,
) -> ComparisonResult | None:
    if roles.overridden is None or not best:
        return None
    found = compare(roles.overridden, best[0], observations, rng, confidence)
    return ComparisonResult(**asdict(found) | {"claimed": False})  # outside of Holm's family


def _never_drafted(result: ArmResult) -> bool:
    return result.tau == 1 and not result.acceptance_rate


def _loaded(machine: Machine, observations: Sequence[Observation]) -> Machine:
    loads = list({row.block: row.load for row in observations}.values())
    return machine.model_copy(update={"load_mean": float(np.mean(loads)), "load_max": max(loads)})
