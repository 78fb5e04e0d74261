"""Points in a plane: throughput against tau, and what scores promised against what came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.charts.scale import Scale, Tick, linear
from evaluation.roles import main_arms, roles
from evaluation.schema import ArmResult, Report
from evaluation.schema_parts import ReliabilityBin

# Labels are placed for the narrowest screen, in pixels: on wider ones points only move apart.
_WIDTH, _HEIGHT = 270.0, 300.0
_DIGIT, _LINE, _GAP = 8.0, 14.0, 7.0


@dataclass(frozen=True, slots=True)
class Point:
    """Places in per cent from the left and from the top; `side`: where its number stands."""

    number: int
    name: str
    kind: str
    x: float
    y: float
    side: str
    said: str
    named: bool


@dataclass(frozen=True, slots=True)
class Scatter:
    """`ray`: what plain decoding would reach at any tau if all cycles cost what its own do."""

    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    ray: tuple[float, float, float, float] | None


@dataclass(frozen=True, slots=True)
class Bubble:
    """A bin of predictions; `radius` in pixels."""

    x: float
    y: float
    radius: float
    said: str


def speed_against_tau(report: Report) -> Scatter | None:
    """Every arm, numbered by speed; nothing to draw with fewer than two."""
    arms = sorted(main_arms(report).items(), key=lambda entry: entry[1].tokens_per_second, reverse=True)
    if len(arms) < 2:
        return None
    across = linear([arm.tau for _, arm in arms])
    up = linear([arm.tokens_per_second for _, arm in arms])
    places = [(across.place(arm.tau), 100 - up.place(arm.tokens_per_second)) for _, arm in arms]
    sides = _sides(places, [str(number + 1) for number in range(len(arms))])
    parts = roles(report)
    return Scatter(
        points=tuple(
            Point(
                number=number,
                name=name,
                kind=arm.kind,
                x=place[0],
                y=place[1],
                side=side,
                said=f"{number}. {name}: tau {arm.tau:.2f}, {arm.tokens_per_second:.1f} tokens/s",
                named=name in parts.shown,
            )
            for number, ((name, arm), place, side) in enumerate(
                zip(arms, places, sides, strict=True), start=1
            )
        ),
        x_ticks=tuple(across.ticks(5)),
        y_ticks=tuple(Tick(100 - tick.place, tick.label) for tick in up.ticks(5)),
        ray=_ray(report.arms[parts.plain], across, up) if parts.plain else None,
    )


def reliability(bins: Sequence[ReliabilityBin]) -> list[Bubble]:
    """Areas are the numbers of nodes."""
    most = max((one.nodes for one in bins), default=0) or 1
    return [
        Bubble(
            x=round(100 * one.promised, 2),
            y=round(100 - 100 * one.came, 2),
            radius=round(3 + 9 * (one.nodes / most) ** 0.5, 1),
            said=f"promised {one.promised:.2f}, came {one.came:.2f}, {one.nodes} nodes",
        )
        for one in bins
        if one.nodes
    ]


def _ray(plain: ArmResult, across: Scale, up: Scale) -> tuple[float, float, float, float]:
    """Unclipped ends, in per cent: the drawing cuts what lies outside."""
    per_tau = plain.tokens_per_second / plain.tau if plain.tau else 0.0

    def height(tau: float) -> float:
        return round(100 - 100 * (per_tau * tau - up.low) / (up.high - up.low), 2)

    return 0.0, height(across.low), 100.0, height(across.high)


def _sides(places: Sequence[tuple[float, float]], labels: Sequence[str]) -> list[str]:
    """For each label the side of its point where it covers least of other points and earlier labels."""
    pixels = [(x / 100 * _WIDTH, y / 100 * _HEIGHT) for x, y in places]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in pixels]
    sides = []
    for (x, y), label in zip(pixels, labels, strict=True):
        width = _DIGIT * len(label)
        boxes = {
            "right": (x + _GAP, y - _LINE / 2, x + _GAP + width, y + _LINE / 2),
            "left": (x - _GAP - width, y - _LINE / 2, x - _GAP, y + _LINE / 2),
            "above": (x - width / 2, y - _GAP - _LINE, x + width / 2, y - _GAP),
            "below": (x - width / 2, y + _GAP, x + width / 2, y + _GAP + _LINE),
        }
        side = min(boxes, key=lambda name: sum(_overlap(boxes[name], box) for box in taken))
        sides.append(side)
        taken.append(boxes[side])
    return sides


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Area that two boxes (left, top, right, bottom) share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
