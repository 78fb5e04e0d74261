"""Cost profiles of machines that were not measured, derived from a measured one: every one is labelled
synthetic.

They say what would be worth deciding at such costs, not what such a machine does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from decoding.profile import CostProfile, Table

# A GPU that waits for its memory computes this many rows in the time of one.
FLAT_ROWS = 64
LEVEL_SHARE = 0.5
CLIFF_ROWS, CLIFF_FACTOR = 8, 2.0
SLOW_DRAFTER = 3.0
SLOW_TARGET = 4.0

Derive = Callable[[CostProfile], CostProfile]


@dataclass(frozen=True)
class CostRegime:
    """A kind of machine.

    Attributes:
        name: of it.
        costs: what differs from the measured profile, in words.
        derive: makes its profile from a measured one; None = the measured one itself.
    """

    name: str
    costs: str
    derive: Derive | None = None

    @property
    def synthetic(self) -> bool:
        """Whether it was made up."""
        return self.derive is not None

    def profile(self, measured: CostProfile) -> CostProfile:
        """Its costs; the device is named as synthetic, so that no print of them can be taken for measured."""
        if self.derive is None:
            return measured
        device = f"{measured.conditions.device}, synthetic: {self.name}"
        return replace(
            self.derive(measured),
            conditions=replace(measured.conditions, device=device),
            spread={},  # quartiles of what was measured say nothing of what was made up
            note={"synthetic": self.costs},
        )


def flat(profile: CostProfile) -> CostProfile:
    """A verification of up to `FLAT_ROWS` rows costs what one row does, of more in proportion to them; levels
    of the draft are `LEVEL_SHARE` as dear."""
    one_row = profile.verification[0]
    rows = [tuple(cost * max(1.0, count / FLAT_ROWS) for cost in one_row) for count in profile.rows]
    return replace(drafts_scaled(profile, LEVEL_SHARE), verification=tuple(rows))


def cliff(profile: CostProfile) -> CostProfile:
    """Flat, and beyond `CLIFF_ROWS` rows `CLIFF_FACTOR` as dear: what a kernel of fixed tiles, or a second
    pass, does."""
    level = flat(profile)
    rows = [
        tuple(cost * (CLIFF_FACTOR if count > CLIFF_ROWS else 1.0) for cost in row)
        for count, row in zip(level.rows, level.verification, strict=True)
    ]
    return replace(level, verification=tuple(rows))


def slow_drafter(profile: CostProfile) -> CostProfile:
    """Every level, and what the first digests, costs `SLOW_DRAFTER` as much."""
    return drafts_scaled(profile, SLOW_DRAFTER)


def slow_target(profile: CostProfile) -> CostProfile:
    """Every forward of the target costs `SLOW_TARGET` as much, the plain step's too."""
    return replace(profile, verification=scaled(profile.verification, SLOW_TARGET))


def drafts_scaled(profile: CostProfile, factor: float) -> CostProfile:
    """All that drafting costs, times `factor`."""
    return replace(
        profile,
        levels={source: scaled(table, factor) for source, table in profile.levels.items()},
        digest=tuple(cost * factor for cost in profile.digest),
    )


def scaled(table: Table, factor: float) -> Table:
    """Every cost times `factor`."""
    return tuple(tuple(cost * factor for cost in row) for row in table)


MEASURED = CostRegime("measured", "as measured")
REGIMES = (
    MEASURED,
    CostRegime(
        "flat",
        f"verification as dear as one row up to {FLAT_ROWS} rows, levels x {LEVEL_SHARE:g}",
        flat,
    ),
    CostRegime(
        "cliff",
        f"flat, but x {CLIFF_FACTOR:g} beyond {CLIFF_ROWS} rows",
        cliff,
    ),
    CostRegime("slow drafter", f"levels x {SLOW_DRAFTER:g}", slow_drafter),
    CostRegime("slow target", f"every target forward x {SLOW_TARGET:g}", slow_target),
)
