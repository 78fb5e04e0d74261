"""A cost profile on a terminal: its parts by context, and its error."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from decoding.profile import CostProfile

# On a quiet machine the median error is 6 to 11 %.
MOST_ERROR = 0.2
MOST_DISTURBED = 0.5


def print_profile(profile: CostProfile, console: Console) -> None:
    """Print costs in milliseconds with the quartiles of measured over predicted, then the held-out error."""
    about = profile.conditions
    title = (
        f"{about.drafter} on {about.device}, {about.dtype}, {about.path} path, {about.threads} threads, "
        f"temperature {about.temperature:g}: milliseconds by context"
    )
    table = Table(title=escape(title))
    table.add_column("part")
    for context in profile.contexts:
        table.add_column(str(context), justify="right")
    table.add_column("quartiles", justify="right")
    for part, costs, spread in _rows(profile):
        table.add_row(part, *(f"{1e3 * cost:.3g}" for cost in costs), spread)
    console.print(table)
    for line in _lines(profile):
        console.print(Text(line))


def _rows(profile: CostProfile) -> list[tuple[str, tuple[float, ...], str]]:
    found = [("before drafting", profile.start, _spread(profile, "start", 0))]
    for source, table in profile.levels.items():
        for level, costs in enumerate(table, start=1):
            spread = _spread(profile, f"levels of the {source}", level - 1)
            found.append((f"{source}, level {level}", costs, spread))
    for place, (count, costs) in enumerate(zip(profile.rows, profile.verification, strict=True)):
        name = f"verify {count} row{'s' if count > 1 else ''}"
        found.append((name, costs, _spread(profile, "verification", place)))
    return found


def _spread(profile: CostProfile, part: str, place: int) -> str:
    rows = profile.spread.get(part, ())
    return f"{rows[place][0]:.2f} .. {rows[place][1]:.2f}" if place < len(rows) else ""


def _lines(profile: CostProfile) -> list[str]:
    base, per_level, per_node = (1e3 * one for one in profile.selection)
    first, further = (1e3 * one for one in profile.commit)
    digest = ", ".join(
        f"{tokens}: {1e3 * extra:.2f}"
        for tokens, extra in zip(profile.digest_tokens, profile.digest, strict=True)
        if tokens > 1
    )
    lines = [
        f"Digesting more than one token adds to the first level (tokens: ms): {digest or 'nothing measured'}",
        f"Selection {base:.3f} ms + {per_level:.4f} a level + {per_node:.4f} a node; commit {first:.3f} ms + "
        f"{further:.3f} a further token; a policy call {1e3 * profile.policy:.3f} ms; verification "
        f"+ {1e3 * profile.verification_token:.3f} ms a further token",
    ]
    share = profile.note.get("disturbed_share", 0)
    if share:
        lines.append(f"Other processes disturbed {share:.0%} of the cycles: profile a quiet machine")
    names = {"held_out": "all held-out cycles", "held_out_undisturbed": "those that nothing disturbed"}
    lines.extend(_error(names[key], profile.note.get(key)) for key in names)
    return lines


def _error(name: str, error: dict[str, Any] | None) -> str:
    if error is None:
        return f"Predicted against measured, {name}: there are none"
    return (
        f"Predicted against measured, {name} ({error['cycles']}): median error {error['median']:.1%}, "
        f"quartiles {error['low']:.1%} .. {error['high']:.1%}, bias {error['bias']:+.1%}"
    )


def doubts(profile: CostProfile) -> list[str]:
    """Why its costs may not be believed, where they may not."""
    held_out = profile.note.get("held_out")
    error = _number(held_out.get("median")) if isinstance(held_out, dict) else 0.0
    share = _number(profile.note.get("disturbed_share"))
    again = "profile again on a quiet machine"
    said = []
    if error > MOST_ERROR:
        said.append(
            f"the profile predicts cycles that it never saw with a median error of {error:.0%}, more than"
            f" {MOST_ERROR:.0%}: {again}"
        )
    if share > MOST_DISTURBED:
        said.append(
            f"other processes disturbed {share:.0%} of the profile's cycles, more than {MOST_DISTURBED:.0%}:"
            f" {again}"
        )
    return said


def _number(value: object) -> float:
    # A note may hold anything.
    return float(value) if isinstance(value, int | float) else 0.0
