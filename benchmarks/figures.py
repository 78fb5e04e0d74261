"""`python -m benchmarks.figures`: draw the figures of docs/ as SVG, the same bytes on every run.

`acceptance-processes.svg`: two kinds of text with the same mean acceptance rate emit different numbers of
tokens. `three-symbols.svg`: what the rejection rule accepts, and why the residual must take the rest.
`reliability.svg`: what the path scores of the shipped head, merged with lookup, promise, and what happens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.reliability_figure import reliability_diagrams
from decoding.cost_model import (
    constant_prefixes,
    expected_emitted,
    expected_emitted_from_prefixes,
    mixed_prefixes,
)
from decoding.drafters.load import ASSETS

# Of the last calibration of the shipped head.
RELIABILITY = ASSETS / "smollm2-135m-eagle3" / "reliability.json"
RATE, EASY, HARD = Fraction(7, 10), Fraction(19, 20), Fraction(9, 20)
DEEPEST = 16
# Okabe and Ito's palette (Color Universal Design, 2008): told apart by colour-blind readers.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#555555"
STYLE: Any = {
    "svg.hashsalt": "draftpace",  # ids in the file are hashes: without this they differ by run
    "font.family": "DejaVu Sans",  # it comes with matplotlib, so that every machine draws the same
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # A page may be dark: the figure brings its own background.
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True, slots=True)
class RejectionWorld:
    """The rejection rule at one position (Leviathan, Kalman, Matias, ICML 2023, arXiv 2211.17192, section
    2.3).

    Attributes:
        target, draft: the two distributions over the symbols; they must differ.
    """

    target: tuple[Fraction, ...]
    draft: tuple[Fraction, ...]

    @property
    def accepted(self) -> tuple[Fraction, ...]:
        """m: draft * min(1, target / draft) by symbol."""
        return tuple(map(min, self.target, self.draft))

    @property
    def rejected(self) -> Fraction:
        """Z: the mass that is not accepted."""
        return 1 - sum(self.accepted, Fraction(0))

    @property
    def residual(self) -> tuple[Fraction, ...]:
        """r: the normalised positive part of target - draft."""
        return tuple(
            (goal - kept) / self.rejected for goal, kept in zip(self.target, self.accepted, strict=True)
        )

    @property
    def law(self) -> tuple[Fraction, ...]:
        """m + Z r: what is emitted."""
        return self._completed_by(self.residual)

    @property
    def wrong_law(self) -> tuple[Fraction, ...]:
        """m + Z target: what would be emitted if a rejection were answered by the target's own law."""
        return self._completed_by(self.target)

    @property
    def wrong_by(self) -> Fraction:
        """Total variation between the wrong law and the target."""
        return sum((abs(a - b) for a, b in zip(self.wrong_law, self.target, strict=True)), Fraction(0)) / 2

    def _completed_by(self, fallback: Sequence[Fraction]) -> tuple[Fraction, ...]:
        return tuple(
            kept + self.rejected * extra for kept, extra in zip(self.accepted, fallback, strict=True)
        )


def three_symbols() -> RejectionWorld:
    """The example of the design: target (.5, .3, .2), draft (.2, .5, .3)."""
    tenth = Fraction(1, 10)
    return RejectionWorld((5 * tenth, 3 * tenth, 2 * tenth), (2 * tenth, 5 * tenth, 3 * tenth))


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder for the SVG files")
    options = parser.parse_args(arguments)
    with matplotlib.style.context(["default", STYLE]):  # whatever the user's own matplotlibrc says
        drawn = {
            "acceptance-processes": acceptance_processes(),
            "three-symbols": rejection_bars(three_symbols()),
            "reliability": reliability_diagrams(RELIABILITY, {"before": ORANGE, "after": BLUE}),
        }
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            for name, figure in drawn.items():
                figure.savefig(options.out / f"{name}.svg", metadata={"Date": None, "Creator": None})
        except OSError as error:
            print(f"error: --out {options.out}: {error.strerror}; name a folder", file=sys.stderr)
            return 2
    return 0


def acceptance_processes() -> Figure:
    """E by gamma of constant and of mixed acceptance, and the error of the constant-alpha formula."""
    depths = range(DEEPEST + 1)
    mixed = mixed_prefixes(constant_prefixes(EASY, DEEPEST), constant_prefixes(HARD, DEEPEST))
    constant_e = [float(expected_emitted(RATE, depth)) for depth in depths]
    mixed_e = [float(expected_emitted_from_prefixes(mixed[:depth])) for depth in depths]
    pooled_e = [1.0]
    for depth in depths[1:]:
        accepted, offered = mixed_e[depth] - 1, mixed_e[depth - 1]
        pooled_e.append(float(expected_emitted(accepted / offered, depth)))
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(depths, mixed_e, "o-", color=BLUE, label="each cycle 0.95 or 0.45, equally often")
    left.plot(depths, constant_e, "s-", color=ORANGE, label="every token 0.70")
    left.set(title="Same mean acceptance rate: 0.70", ylabel="E, expected tokens a cycle", ylim=(0, 7.2))
    left.legend(loc="upper left", frameon=False)
    for estimate, marker, colour, label in (
        (pooled_e, "^-", GREEN, "alpha = accepted / offered"),
        (constant_e, "s-", ORANGE, "alpha = 0.70, the mean over cycles"),
    ):
        error = [100 * (given / true - 1) for given, true in zip(estimate, mixed_e, strict=True)]
        right.plot(depths, error, marker, color=colour, label=label)
    right.axhline(0, color=BLUE, linewidth=1.5)
    right.set(title="Error of the constant-alpha formula", ylabel="error of E of the mixed cycles, %")
    right.legend(loc="lower left", frameon=False)
    for axes in (left, right):
        axes.set(xlabel="gamma, drafted tokens a cycle", xticks=range(0, DEEPEST + 1, 2))
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
    return figure


def rejection_bars(world: RejectionWorld) -> Figure:
    """By symbol: what of the draft is accepted and rejected; what a rejection adds, rightly and wrongly."""
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    before, right, wrong = figure.subplots(1, 3, sharey=True)
    total = _short(world.rejected)
    surplus = tuple(drawn - kept for drawn, kept in zip(world.draft, world.accepted, strict=True))
    _stack(before, world, surplus, f"rejected, Z = {total} in all", GREY)
    before.set_title("Drawn from the draft", loc="left")
    before.set_ylabel("probability")
    _stack(
        right,
        world,
        tuple(world.rejected * share for share in world.residual),
        "Z r, from the residual r",
        BLUE,
    )
    right.set_title("Emitted: m + Z r = target", loc="left")
    _stack(
        wrong,
        world,
        tuple(world.rejected * share for share in world.target),
        "Z target, from the target itself",
        ORANGE,
    )
    wrong.set_title(f"Wrong: m + Z target, {_short(world.wrong_by)} off (TV)", loc="left")
    return figure


def _stack(axes: Axes, world: RejectionWorld, masses: Sequence[Fraction], label: str, colour: str) -> None:
    """Bars of the accepted mass with `masses` on top, their sums above them, the target as lines."""
    places = range(len(world.target))
    kept, added = ([float(mass) for mass in row] for row in (world.accepted, masses))
    axes.bar(places, kept, 0.6, color="#BBBBBB", label="m, accepted: min(target, draft)")
    axes.bar(places, added, 0.6, bottom=kept, color=colour, hatch="//", edgecolor="white", label=label)
    for place, below, above in zip(places, kept, added, strict=True):
        axes.text(place, below / 2, _short(below), ha="center", va="center")
        if above:
            box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
            axes.text(place, below + above / 2, _short(above), ha="center", va="center", size=12, bbox=box)
        axes.text(
            place, below + above + 0.012, _short(below + above), ha="center", va="bottom", weight="bold"
        )
    axes.hlines(
        [float(goal) for goal in world.target],
        [place - 0.4 for place in places],
        [place + 0.4 for place in places],
        color="black",
        linewidth=2.5,
        label="target",
    )
    axes.set_xticks(places, [f"symbol {number}" for number in range(1, len(world.target) + 1)])
    axes.set_ylim(0, 0.82)
    axes.legend(loc="upper right", frameon=False, fontsize=12)


def _short(value: Fraction | float) -> str:
    return f"{float(value):.2g}"


if __name__ == "__main__":
    sys.exit(main())
