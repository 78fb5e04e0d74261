"""Does the text follow the target's law? A chi-square test of real decoding against the exact joint law.

Every combination of rule, drafter, law and controller decodes texts of its own, from seeds of its own, in a
world small enough to know the probability of each text (`tiny_world`). A row counts their first `LENGTH`
tokens; one more row, controller `all`, counts those of all controllers together. Holm's correction is over
all rows, and a row is a fault where the adjusted p-value is below `LEVEL`. Sound code raises an alarm in one
or two of 1,000 runs: so far out the statistic's tail is up to 3 times the chi-square law's, in simulation. At
temperature 0 nothing is left to chance: every text must be the greedy one. Nor may a text occur, ever, that
the law gives probability 0.

Power: with `SAMPLES` a row of one controller finds a law .19 away in total variation over its cells with
probability .9, a row of all controllers one .10 away; every report says so for its own rows. That is the
non-central chi-square law at 4 samples TV^2, the least it can be: by Cauchy-Schwarz the chi-square distance
is never below 4 TV^2. In simulation such laws are found with probability .92 to .95.

Legend: T texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, product
from typing import Any

import numpy as np

from decoding.controller import Controller
from decoding.metrics import CycleSummary, merge, summarise
from decoding.records import CycleRecord
from decoding.sampling import Sampling
from decoding.session import RULES, Rule, Session
from evaluation.chi_square import LEAST_EXPECTED, cells, chi_square, detectable
from evaluation.law_controllers import CONTROLLERS
from evaluation.statistics import holm_adjusted
from evaluation.tiny_world import DRAFTERS, PROMPT, VOCABULARY, World, exact_law, tiny_world

LENGTH = 3
LEVEL = 1e-3
SAMPLES = 500
_GREEDY_SAMPLES = 20
_LEAST_CELLS = 5
_ALL = "all"
# More than a cycle can emit past `LENGTH`: the limit on new tokens never shortens a draft.
_MOST_TOKENS = 2 * LENGTH + 2
# Each run owns the noise seeds from seed * 2**32 on, each row so many of them.
_SEEDS = 2**32
_MOST_SAMPLES = 1_000_000

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Law:
    """Settings of the target's law that are checked."""

    temperature: float
    top_k: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What decodes the texts of a group of rows, one row a controller."""

    rule: Rule
    drafter: str
    law: Law


LAWS = (Law(0.0), Law(0.7), Law(1.0), Law(1.0, top_k=3))
CASES = tuple(Case(*parts) for parts in product(RULES, DRAFTERS, LAWS))


@dataclass(frozen=True, slots=True)
class LawRow:
    """Texts of one combination against the exact law.

    Attributes:
        controller: `all` = the texts of all controllers together.
        first_seed: of the request's noise; its texts have this one and those after it. None for `all`.
        acceptance_rate: accepted / offered drafted tokens, over all depths.
        tau: emitted tokens / cycles.
        total_variation: between observed frequencies and the law; sound code has some too, from chance.
        chi2: None where a text was seen that has no probability; p is 0 then.
        degrees: cells - 1; 0 where the law leaves one text.
        adjusted_p_value: after Holm.
        detectable: the total variation over its cells that this row finds with probability `POWER`; None
            without degrees.
    """

    rule: Rule
    drafter: str
    temperature: float
    top_k: int | None
    controller: str
    first_seed: int | None
    samples: int
    acceptance_rate: float
    tau: float
    total_variation: float
    chi2: float | None
    degrees: int
    p_value: float
    adjusted_p_value: float
    detectable: float | None

    @property
    def fault(self) -> bool:
        return self.adjusted_p_value < LEVEL


@dataclass(frozen=True, slots=True)
class LawReport:
    """All rows of a check; equal samples and seed, equal report."""

    samples: int
    seed: int
    rows: tuple[LawRow, ...]

    @property
    def faults(self) -> list[LawRow]:
        """Rows whose law is not the target's."""
        return [row for row in self.rows if row.fault]

    def detectable(self, pooled: bool) -> float:
        """Total variation that each row, of one controller or `pooled` over all, finds with probability
        `POWER`."""
        return max(
            row.detectable
            for row in self.rows
            if row.detectable is not None and (row.controller == _ALL) == pooled
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, NaN and infinity not among them."""
        rows = [asdict(row) | {"fault": row.fault} for row in self.rows]
        return {
            "samples": self.samples,
            "seed": self.seed,
            "level": LEVEL,
            "length": LENGTH,
            "faults": len(self.faults),
            "rows": rows,
        }


def check_law(
    samples: int = SAMPLES,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    cases: Sequence[Case] = CASES,
    controllers: Mapping[str, Callable[[], Controller]] = CONTROLLERS,
) -> LawReport:
    """Decode and compare every one of `cases` with every one of `controllers`; minutes with the defaults.

    Args:
        samples: texts of a row of one controller (20 at temperature 0, where all are equal).
        seed: in 0..2**32 - 1; repeats a run, alarms included.
        on_progress: called after each row with (done, total, name).

    Raises:
        ValueError: seed out of range, or so few samples that some row is left with fewer than 5 cells.
    """
    if type(seed) is not int or not 0 <= seed < _SEEDS:
        raise ValueError(f"seed is {seed!r}, must be a whole number in 0..{_SEEDS - 1}")
    world = tiny_world()
    laws = {
        law: exact_law(world.target.model, PROMPT, LENGTH, law.temperature, law.top_k)
        for law in dict.fromkeys(case.law for case in cases)
    }
    _check_samples(samples, [law_T for law, law_T in laws.items() if law.temperature > 0])
    tallies: list[_Tally] = []
    total = len(cases) * len(controllers)
    for number, case in enumerate(cases):
        mine = []
        for place, (name, controller) in enumerate(controllers.items()):
            done = number * len(controllers) + place
            wanted = samples if case.law.temperature > 0 else min(samples, _GREEDY_SAMPLES)
            mine.append(_decode(world, case, name, controller, wanted, seed * _SEEDS + done * samples))
            if on_progress is not None:
                on_progress(done + 1, total, f"{case.rule} {case.drafter} {name}")
        tallies += [*mine, _together(mine)]
    return LawReport(samples, seed, tuple(_rows(tallies, laws)))


@dataclass(frozen=True, slots=True)
class _Tally:
    """How often each text (T) was seen, and the cycles behind it."""

    case: Case
    controller: str
    first_seed: int | None
    seen_T: np.ndarray
    cycles: CycleSummary


def _decode(
    world: World,
    case: Case,
    name: str,
    controller: Callable[[], Controller],
    samples: int,
    first_seed: int,
) -> _Tally:
    seen_T = np.zeros(VOCABULARY**LENGTH, dtype=np.int64)
    records: list[CycleRecord] = []
    sampling = Sampling(case.law.temperature, top_k=case.law.top_k)
    for seed in range(first_seed, first_seed + samples):
        session = Session(
            world.target,
            world.drafters[case.drafter],
            PROMPT,
            max_new_tokens=_MOST_TOKENS,
            end_ids=(),
            sampling=sampling,
            seed=seed,
            rule=case.rule,
        )
        for record in session.run(controller()):
            records.append(record)
            if len(session.generated) >= LENGTH:
                break
        seen_T[np.ravel_multi_index(session.generated[:LENGTH], (VOCABULARY,) * LENGTH)] += 1
    return _Tally(case, name, first_seed, seen_T, summarise(records))


def _together(tallies: Sequence[_Tally]) -> _Tally:
    seen_T = np.sum([tally.seen_T for tally in tallies], axis=0)
    return _Tally(tallies[0].case, _ALL, None, seen_T, merge(tally.cycles for tally in tallies))


def _rows(tallies: Sequence[_Tally], laws: dict[Law, np.ndarray]) -> Iterator[LawRow]:
    tests = [chi_square(tally.seen_T, laws[tally.case.law]) for tally in tallies]
    adjusted = holm_adjusted([p_value for _, _, p_value in tests])
    for tally, (chi2, degrees, p_value), adjusted_p_value in zip(tallies, tests, adjusted, strict=True):
        samples, law = int(tally.seen_T.sum()), tally.case.law
        offered = sum(tally.cycles.offered_by_depth)
        yield LawRow(
            rule=tally.case.rule,
            drafter=tally.case.drafter,
            temperature=law.temperature,
            top_k=law.top_k,
            controller=tally.controller,
            first_seed=tally.first_seed,
            samples=samples,
            acceptance_rate=sum(tally.cycles.accepted_by_depth) / max(1, offered),
            tau=tally.cycles.acceptance_length,
            total_variation=float(np.abs(tally.seen_T / samples - laws[law]).sum() / 2),
            chi2=chi2,
            degrees=degrees,
            p_value=p_value,
            adjusted_p_value=adjusted_p_value,
            detectable=detectable(samples, degrees, LEVEL / len(tallies)) if degrees else None,
        )


def _check_samples(samples: int, laws: Sequence[np.ndarray]) -> None:
    if type(samples) is not int or not 1 <= samples <= _MOST_SAMPLES:
        raise ValueError(f"samples is {samples!r}, must be a whole number in 1..{_MOST_SAMPLES}")

    def enough(number: int) -> bool:
        return all(len(cells(law_T * number)) >= _LEAST_CELLS for law_T in laws)

    if not enough(samples):
        least = next(number for number in count(samples) if enough(number))
        raise ValueError(
            f"samples is {samples}, must be >= {least}: with fewer some law leaves fewer than {_LEAST_CELLS} "
            f"cells that expect {LEAST_EXPECTED} texts"
        )
