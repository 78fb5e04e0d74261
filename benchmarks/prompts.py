"""What the benchmarks of drafts share: which prompts they measure on, and how a result is stated.

A measurement takes equally many prompts of every category. A prompt that wants its answer in another language
than English counts under its language instead, so that languages are rows of a table beside the categories.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from rich.console import Console
from rich.markdown import Markdown
from scipy import stats

from decoding.artifacts import write_json, write_text
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.base import Drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.models import LoadedModel
from decoding.plain_texts import plain_texts
from decoding.sampling import Sampling
from decoding.workload import Request, Split, load_workload, select, split
from evaluation.machine import machine_info, versions
from evaluation.statistics import CONFIDENCE, MIN_GROUPS

SHIPPED = Path(__file__).resolve().parent.parent / "configs" / "prompts"
WORKLOAD = (SHIPPED / "mixed.jsonl", SHIPPED / "multilingual.jsonl")
ALL = "all"
# Test first: where a part of a file is enough, it is the part that no default trains on.
_PARTS: tuple[Split, ...] = ("test", "validation", "train")
_RESAMPLES = 9_999


class Parser(argparse.ArgumentParser):
    """A mistake is a ValueError: one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def count(text: str) -> int:
    """A flag's whole number, at least 1."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}, must be a whole number >= 1")
    return int(text)


def warmth(text: str) -> float:
    """A flag's temperature."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"is {text}, must be a finite number >= 0")
    return value


def parser_of(name: str, about: str | None, max_new_tokens: int) -> Parser:
    """The flags that these benchmarks share."""
    parser = Parser(prog=f"python -m benchmarks.{name}", description=about, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--workload", nargs="+", type=Path, default=list(WORKLOAD), help="JSONL; default: the shipped prompts"
    )
    add("--split", choices=("all", "test"), default="test", help="all: for files that nothing was trained on")
    add("--per-category", type=int, help="prompts; default: as many as the smallest category has")
    add("--max-new-tokens", type=count, default=max_new_tokens)
    add("--seed", type=int, default=0)
    add("--threads", type=int)
    add("--target", default="smollm2-135m")
    add("--device", default="auto")
    add("--dtype", default="auto")
    add("--out", type=Path, help="folder for the result: JSON, and its tables in Markdown")
    return parser


# --- choosing ---------------------------------------------------------------------------------------------


def load_requests(paths: Sequence[Path]) -> list[Request]:
    """The whole workload, with the rows of a table as categories."""
    return [replace(one, category=row_of(one)) for one in load_workload(paths)]


def row_of(request: Request) -> str:
    """Its category, or its language."""
    # "de-en" is a translation into English, which its category says already.
    if request.language is None or request.language.split("-")[-1] == "en":
        return request.category or "no category"
    return f"language: {request.language}"


def measured(requests: Sequence[Request], part: str, per_category: int | None) -> list[Request]:
    """So many requests of every category, as far as there are, of the test split or of `all` requests."""
    ordered = _shuffled(requests, _PARTS if part == "all" else _PARTS[:1])
    if per_category is None:
        per_category = min(Counter(one.category for one in ordered).values())
    if per_category < 1:
        raise ValueError(f"--per-category is {per_category}, must be >= 1")
    return _first(ordered, per_category)


def tuning(
    requests: Sequence[Request],
    part: str,
    chosen: Sequence[Request],
    per_category: int,
    flag: str = "--choose",
) -> list[Request]:
    """Requests to choose settings on: of the validation split; of `all`, those that are not measured, nor in
    a group with these, nor begin like one."""
    if per_category < 1:
        raise ValueError(f"{flag} is {per_category}, must be >= 1")
    ordered = _shuffled(requests, _PARTS if part == "all" else ("validation",))
    groups, turns = {one.group for one in chosen}, {_turn(one) for one in chosen}
    free = [one for one in ordered if one.group not in groups and _turn(one) not in turns]
    if not free:
        raise ValueError("every request is measured, none is left to choose on: give a lower --per-category")
    return _first(free, per_category)


def _turn(request: Request) -> str:
    return " ".join(request.turns[0].casefold().split())


def _shuffled(requests: Sequence[Request], parts: Sequence[Split]) -> list[Request]:
    """Split by split, each in the fixed random order of `select`."""
    filled = [part for part in parts if split(requests)[part]]
    if not filled:
        raise ValueError(f"the {parts[0]} split of {len(requests)} requests is empty: use --split all")
    return [one for part in filled for one in select(requests, part, limit=len(requests))]


def _first(requests: Sequence[Request], count: int) -> list[Request]:
    rows: dict[str, list[Request]] = defaultdict(list)
    for one in requests:
        rows[str(one.category)].append(one)
    return [one for name in sorted(rows) for one in rows[name][:count]]


def encode(model: LoadedModel, requests: Sequence[Request]) -> list[list[int]]:
    """Token ids of each request's first turn."""
    reader = SpeculativeDecoder(model, NgramDrafter())
    reader.check_prompts({one.question_id: one.turns[0] for one in requests})
    return [reader.encode(reader.as_user(one.turns[0])) for one in requests]


def texts_of(
    model: LoadedModel, prompts: Sequence[Sequence[int]], temperature: float, seed: int, tokens: int
) -> list[list[int]]:
    """What plain decoding emits after each prompt."""
    model.target.capture(())
    sampling, ends = Sampling(temperature), model.end_ids
    found = dict(plain_texts(model.target, prompts, sampling, seed, max_new_tokens=tokens, end_ids=ends))
    return [found[number] for number in range(len(prompts))]


# --- numbers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted on one text, by name."""

    question_id: str
    category: str
    group: str
    counts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quotient of sums and its 95 % interval; None where there is too little to give one."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        bounds = "" if self.low is None else f" ({self.low:.2f}..{self.high:.2f})"
        return "-" if self.value is None else f"{self.value:.2f}{bounds}"


def estimate(rows: Sequence[Counted], above: Sequence[str], below: Sequence[str]) -> Estimate:
    """Product of the sums of the counts `above` over that of the counts `below`.

    The interval resamples groups, all counts of a group together, and is expanded for few groups as that of
    `evaluation.statistics.bootstrap_interval`.
    """
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(above) + len(below)))
    for row in rows:
        sums[row.group] += [row.counts[name] for name in (*above, *below)]
    columns = tuple(np.array(list(sums.values())).T)

    def quotient(*samples: np.ndarray, axis: int = -1) -> Any:
        totals = [sample.sum(axis=axis) for sample in samples]
        with np.errstate(divide="ignore", invalid="ignore"):
            return math.prod(totals[: len(above)]) / math.prod(totals[len(above) :])

    value, groups = float(quotient(*columns)), len(sums)
    if not math.isfinite(value) or groups < MIN_GROUPS:
        return Estimate(value if math.isfinite(value) else None)
    widening = math.sqrt(groups / (groups - 1))
    tail = stats.norm.sf(stats.t.isf((1 - CONFIDENCE) / 2, groups - 1) * widening)
    bounds = stats.bootstrap(
        columns,
        quotient,
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=1 - 2 * tail,
        n_resamples=_RESAMPLES,
        batch=1_000,
        rng=5,
    ).confidence_interval
    finite = math.isfinite(bounds.low) and math.isfinite(bounds.high)
    return Estimate(value, float(bounds.low), float(bounds.high)) if finite else Estimate(value)


def by_category(rows: Sequence[Counted]) -> dict[str, list[Counted]]:
    """The rows of each category, then all of them: the mixed workload."""
    names = sorted({row.category for row in rows})
    return {name: [row for row in rows if row.category == name] for name in names} | {ALL: list(rows)}


# --- results ----------------------------------------------------------------------------------------------


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; the first column is text."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    escaped = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return f"**{title}**\n\n" + "".join(f"| {line} |\n" for line in escaped)


def header(
    command: tuple[str, Sequence[str]],
    options: argparse.Namespace,
    model: LoadedModel,
    drafters: Sequence[Drafter],
    requests: Sequence[Request],
) -> dict[str, Any]:
    """What a number needs beside it; to be called before anything is measured.

    Args:
        command: the benchmark's name, and its arguments.
    """
    counts = Counter(str(one.category) for one in requests)
    return {
        "command": shlex.join(["python", "-m", f"benchmarks.{command[0]}", *command[1]]),
        "machine": machine_info(model.target.device).model_dump(mode="json"),
        "load_before": os.getloadavg()[0],
        "versions": versions(),
        "device": str(model.target.device),
        "dtype": str(model.target.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "target": f"{model.name} ({model.target.fingerprint()})",
        "drafters": {drafter.name: drafter.fingerprint() for drafter in drafters},
        "prompts": len(requests),
        "prompts_by_category": dict(sorted(counts.items())),
        "groups": len({one.group for one in requests}),
        "workload": [os.path.relpath(path) for path in options.workload],
        "split": options.split,
        "max_new_tokens": options.max_new_tokens,
        "seed": options.seed,
    }


def header_lines(head: dict[str, Any]) -> list[str]:
    """The header for people."""
    machine = head["machine"]
    counts: dict[str, int] = head["prompts_by_category"]
    most = max(counts.values())
    fewer = ", ".join(f"{name} {count}" for name, count in counts.items() if count < most)
    return [
        f"`{head['command']}`",
        f"{machine['gpu'] or machine['cpu']}, {machine['cores']} cores, {head['threads']} threads, load "
        f"{head['load_before']:.1f} before; {head['dtype']} on {head['device']}; "
        f"torch {head['versions']['torch']}",
        f"target {head['target']}; drafters: "
        + ", ".join(f"{name} ({fingerprint})" for name, fingerprint in head["drafters"].items()),
        f"{head['prompts']} prompts, {most} of each of {len(counts)} categories"
        + (f" (fewer: {fewer})" if fewer else "")
        + f", of {', '.join(head['workload'])}, split {head['split']}; at most {head['max_new_tokens']} new "
        f"tokens; seed {head['seed']}",
        f"95 % intervals: bootstrap over questions, {head['groups']} in all; none below {MIN_GROUPS}",
    ]


def publish(
    name: str,
    head: dict[str, Any],
    tables: Sequence[str],
    notes: Sequence[str],
    data: dict[str, Any],
    out: Path | None,
) -> None:
    """Print a result, and write it to OUT/NAME.json and OUT/NAME.md where there is a folder for it."""
    lines = "".join(f"- {line}\n" for line in (*header_lines(head), *notes))
    text = "\n".join([lines, *tables])
    console = Console()
    if not console.is_terminal:
        console.width = 160  # in a log nothing is gained by folding tables
    console.print(Markdown(text))
    if out is not None:
        write_json(out / f"{name}.json", {"header": head, "notes": list(notes), **data})
        write_text(out / f"{name}.md", text)
        console.print(f"wrote {out / name}.json and {name}.md", markup=False, highlight=False)
