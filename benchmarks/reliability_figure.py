"""The reliability diagrams of docs/drafts.md: what path scores promise against what happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from decoding.artifacts import read_json

# Fewer predictions than this in a bin say too little to be drawn.
FEWEST = 10


def reliability_diagrams(path: Path, colours: dict[str, str]) -> Figure:
    """A panel a temperature, a line a look: mean prediction against the share that came true, by bin.

    Args:
        path: a `reliability.json` of `train.py calibrate`.
        colours: of the looks, by name.
    """
    looks = read_json(path, "reliability")["looks"]
    temperatures = sorted({look["temperature"] for look in looks})
    figure = Figure(figsize=(4.4 * len(temperatures), 4.6), layout="constrained")
    panels = figure.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
    for axes, temperature in zip(panels, temperatures, strict=True):
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="honest")
        for look in looks:
            if look["temperature"] == temperature:
                _line(axes, look, colours[look["name"]])
        axes.set(title=f"temperature {temperature:g}", xlabel="predicted", xlim=(0, 1), ylim=(0, 1))
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
    panels[0].set_ylabel("on the accepted path, share")
    panels[0].legend(loc="upper left", frameon=False)
    return figure


def _line(axes: Axes, look: dict[str, Any], colour: str) -> None:
    bins = [one for one in look["nodes"]["bins"] if one["count"] >= FEWEST]
    marker = "s-" if look["name"] == "before" else "o-"
    axes.plot(
        [one["predicted"] for one in bins],
        [one["happened"] for one in bins],
        marker,
        color=colour,
        label=look["name"],
    )
