"""What the scores of a drafter promised, and what came of it, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from decoding.traces import Position
from evaluation.reliability import Reliability, accepted_lengths, node_predictions, reliability

# (draft_depth, verification_size) whose accepted lengths are compared.
SHOWN = ((1, 4), (2, 4), (4, 8), (6, 16))


@dataclass(frozen=True, slots=True)
class Look:
    """One drafter at one temperature: `lengths` holds (depth, size, expected, realised) accepted tokens."""

    name: str
    temperature: float
    nodes: Reliability
    lengths: tuple[tuple[int, int, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """For `reliability.json`."""
        return asdict(self)


def look_at(name: str, temperature: float, positions: Sequence[Position]) -> Look:
    """Every node's path probability against its fate, and the accepted lengths of `SHOWN`."""
    lengths = []
    for depth, size in SHOWN:
        if any(one.tree.height >= depth and len(one.following) >= depth for one in positions):
            lengths.append((depth, size, *accepted_lengths(positions, depth, size)))
    return Look(name, temperature, reliability(*node_predictions(positions)), tuple(lengths))


def print_looks(looks: Sequence[Look], console: Console) -> None:
    """A row a look. The last columns: accepted tokens at a depth and size, expected/realised."""
    table = Table(
        title="what path scores promise, and what came of it",
        caption="error: mean |predicted - happened|; loss: nats; DxS: accepted, expected/realised",
    )
    for column in ("scores", "T", "error", "loss"):
        table.add_column(column, justify="right", no_wrap=True)
    for depth, size in SHOWN:
        table.add_column(f"{depth}x{size}", justify="right", no_wrap=True)
    for look in looks:
        found = {(depth, size): (expected, realised) for depth, size, expected, realised in look.lengths}
        cells = [f"{found[one][0]:.2f}/{found[one][1]:.2f}" if one in found else "" for one in SHOWN]
        nodes = look.nodes
        table.add_row(
            look.name,
            f"{look.temperature:g}",
            f"{nodes.error:.3f}",
            f"{nodes.log_loss:.3f}",
            *cells,
        )
    console.print(table)
