"""report.html: one file that needs no network, from a `Report` alone."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from decoding.artifacts import atomic_path
from evaluation import sentences
from evaluation.absent import absent
from evaluation.charts import bars, cross_check, forest, heat_map, scatter, strip
from evaluation.roles import headline, roles
from evaluation.schema import Report

TEMPLATES = Path(__file__).parent / "templates"

# Control characters, and those that turn the direction of text: in a prompt they could make a page read as
# something else.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def write_html(out_dir: Path, report: Report) -> None:
    """Write `report.html` into this folder, whole or not at all."""
    with atomic_path(out_dir / "report.html") as temporary:
        temporary.write_text(render(report), encoding="utf-8")


def render(report: Report) -> str:
    """The page. What a report does not hold is named in a sentence, not drawn empty."""
    return _environment().get_template("report.html.j2").render(**_context(report))


def _context(report: Report) -> dict[str, Any]:
    parts = roles(report)
    slices = report.slices
    grid = report.replay.grid if report.replay else report.grid
    return {
        "report": report,
        "roles": parts,
        "say": sentences,
        "headline": headline(report),
        "absent": absent(report),
        "speed_ups": bars.speed_ups(report),
        "comparisons": forest.comparisons(report),
        "grids": heat_map.grids(grid),
        "scatter": scatter.speed_against_tau(report),
        "actions": [
            heat_map.actions(name, report.arms[name].actions)
            for name in (parts.learned, parts.best_fixed)
            if name is not None and report.arms[name].actions
        ],
        "stacks": bars.stacks(report),
        "lengths": bars.lengths(report, parts),
        "by": [
            (title, forest.slices(report, rows), plain)
            for title, rows, plain in (
                ("category", slices.by_category if slices else {}, report.by_category),
                ("language", slices.by_language if slices else {}, report.by_language),
                ("temperature", slices.by_temperature if slices else {}, report.by_temperature),
            )
            if plain or rows
        ],
        "bubbles": scatter.reliability(report.reliability or []),
        "predictions": cross_check.predictions(report),
        "regimes": forest.regimes(report),
        "strips": strip.strips(report.strips),
        "depths": strip.depths(report.strips),
        "collapse": _collapse(report),
    }


def _collapse(report: Report) -> tuple[list[str], list[tuple[str, str]]] | None:
    """(what is wrong, other facts); None where nothing is known of the policy."""
    found: Any = report.collapse
    if found is None:
        found = (report.policy or {}).get("collapse")
        if found is None:
            return None
    if isinstance(found, list):
        return [str(one) for one in found], []
    wrong = [str(one) for value in found.values() if isinstance(value, list) for one in value]
    facts = [
        (key.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for key, value in found.items()
        if isinstance(value, (str, int, float))
    ]
    return wrong, facts


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.globals["css"] = Markup((TEMPLATES / "report.css").read_text(encoding="utf-8"))  # ours
    return environment


def _seen(value: Any) -> Any:
    """Show what could not be seen, in everything but our own markup."""
    return _UNSEEN.sub("�", value) if isinstance(value, str) and not isinstance(value, Markup) else value
