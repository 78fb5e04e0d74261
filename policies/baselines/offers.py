"""What a drafter offers a rule to choose its constants from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.controller import RootChoice
from policies.baselines.depth_rule import Frame

USUAL_SIZE = 8
SIZES = (2, 3, 4, 5, 6, 8, 12)
# Of a bandit: few, as each of them has to be paid for before it is known.
ARM_DEPTHS = (1, 2, 4, 6)
ARM_SIZES = (4, 8)


@dataclass(frozen=True, slots=True)
class Offers:
    """Constants to choose from.

    Args:
        max_depth: greatest draft_depth.
        roots: see `Frame`, the usual one first.
        sizes: `verification_size` values, strictly increasing.
    """

    max_depth: int
    roots: tuple[str, ...] = ("all",)
    sizes: tuple[int, ...] = SIZES

    def __post_init__(self) -> None:
        if not self.roots or len(set(self.roots)) < len(self.roots):
            raise ValueError(f"roots are {self.roots}, must be at least one, each once")
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"sizes are {self.sizes}, must be strictly increasing, at least one")
        for root in self.roots:
            for size in self.sizes:
                Frame(root, size, self.max_depth)

    @classmethod
    def of(cls, choices: Sequence[RootChoice], max_depth: int, sizes: tuple[int, ...] = SIZES) -> Offers:
        """Of a drafter with these `root_choices`."""
        return cls(max_depth, ("all", "composite") if RootChoice.LOOKUP in choices else ("all",), sizes)

    @property
    def frames(self) -> list[Frame]:
        """All of them, the usual one first: the first root, and the largest size up to 8."""
        usual = max((size for size in self.sizes if size <= USUAL_SIZE), default=self.sizes[0])
        pairs = [(root, size) for root in self.roots for size in self.sizes]
        pairs.sort(key=lambda pair: pair != (self.roots[0], usual))
        return [Frame(root, size, self.max_depth) for root, size in pairs]

    @property
    def arms(self) -> tuple[Frame | None, ...]:
        """The fixed grid of a bandit: a plain step, then every root with a few depths and sizes."""
        depths = sorted({min(depth, self.max_depth) for depth in ARM_DEPTHS})
        sizes = [size for size in ARM_SIZES if size <= self.sizes[-1]] or [self.sizes[-1]]
        grid = (Frame(root, size, depth) for root in self.roots for depth in depths for size in sizes)
        return (None, *grid)
