"""The cost model fed: from measured cycles, from mistakes, from the command line."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from operator import mul
from pathlib import Path

import pytest

from decoding.cost_model import (
    CycleCost,
    best_depth,
    constant_prefixes,
    expected_emitted,
    expected_emitted_from_prefixes,
    forecast,
    main,
    measured_prefixes,
    mixed_prefixes,
    worth_one_more,
)
from decoding.metrics import acceptance_rate
from decoding.records import CycleRecord, PhaseSeconds

MEAN, EASY, HARD = Fraction(7, 10), Fraction(19, 20), Fraction(9, 20)

# --- from measured cycles ---------------------------------------------------------------------------------


def simulate(count: int, depth_of: Callable[[random.Random, float], int]) -> list[tuple[bool, ...]]:
    """`accepted_by_depth` of easy and hard cycles; `depth_of` chooses a depth, and may see the kind."""
    rng = random.Random(7)
    cycles = []
    for _ in range(count):
        rate = rng.choice((float(EASY), float(HARD)))
        cycle: list[bool] = []
        for _ in range(depth_of(rng, rate)):
            cycle.append(rng.random() < rate)
            if not cycle[-1]:
                break
        cycles.append(tuple(cycle))
    return cycles


def test_prefixes_by_hand() -> None:
    cycles = [(), (True, True, False), (False,), (True,), (True, True)]
    # depth 1: 3 of 4; depth 2: 2 of the 2 that went on; depth 3: 0 of 1
    assert measured_prefixes(cycles) == (Fraction(3, 4), Fraction(3, 4), 0)
    assert measured_prefixes([]) == measured_prefixes([()]) == ()


def test_prefixes_are_products_of_the_rates_that_metrics_counts() -> None:
    cycles = simulate(500, lambda rng, rate: rng.randint(0, 5))
    records = [CycleRecord(5, 5, cycle, (1,), 10, PhaseSeconds()) for cycle in cycles]
    expected = tuple(accumulate(acceptance_rate(records), mul))
    assert tuple(map(float, measured_prefixes(cycles))) == pytest.approx(expected)


def test_cycles_of_one_depth_need_no_correction() -> None:
    cycles = simulate(500, lambda rng, rate: 4)
    counted = tuple(Fraction(sum(sum(cycle) >= i for cycle in cycles), 500) for i in range(1, 5))
    assert measured_prefixes(cycles) == counted


def test_depths_drawn_at_random_are_corrected() -> None:
    count = 40_000
    cycles = simulate(count, lambda rng, rate: rng.randint(0, 6))
    truth = mixed_prefixes(constant_prefixes(EASY, 6), constant_prefixes(HARD, 6))
    measured = measured_prefixes(cycles)
    assert len(measured) == 6
    for i, (found, true) in enumerate(zip(measured, truth, strict=True), 1):
        reached = sum(len(cycle) >= i for cycle in cycles)
        assert float(found) == pytest.approx(float(true), abs=4 * 0.5 / reached**0.5)
        uncorrected = sum(sum(cycle) >= i for cycle in cycles) / count
        assert uncorrected < float(true) - 0.08


def test_depths_chosen_by_difficulty_are_not() -> None:
    cycles = simulate(40_000, lambda rng, rate: 2 if rate == float(EASY) else 1)
    truth = mixed_prefixes(constant_prefixes(EASY, 2), constant_prefixes(HARD, 2))
    assert float(measured_prefixes(cycles)[1]) == pytest.approx(float(MEAN * EASY), abs=0.01)
    assert float(truth[1]) == 0.5525 < float(MEAN * EASY)


# --- mistakes ---------------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_emitted(NAN, 2), "acceptance rate is nan, must be in 0..1"),
        (lambda: expected_emitted(1.5, 2), "acceptance rate is 1.5, must be in 0..1"),
        (lambda: expected_emitted(-0.1, 2), "acceptance rate is -0.1, must be in 0..1"),
        (lambda: expected_emitted(0.5, -1), "draft_depth is -1, must be a whole number >= 0"),
        (lambda: expected_emitted(0.5, 2.0), "draft_depth is 2.0, must"),  # type: ignore[arg-type]
        (lambda: expected_emitted(0.5, True), "draft_depth is True, must be a whole number"),
        (lambda: expected_emitted_from_prefixes([0.5, NAN]), "at depth 2 is nan, must be in 0..1"),
        (lambda: expected_emitted_from_prefixes([0.5, 0.6]), "at depth 2 is 0.6 after 0.5, must not rise"),
        (lambda: expected_emitted_from_prefixes([1.1]), "at depth 1 is 1.1, must be in 0..1"),
        (lambda: expected_emitted_from_prefixes([-0.1]), "at depth 1 is -0.1, must be in 0..1"),
        (lambda: mixed_prefixes(), "reach depths []: give at least one"),
        (lambda: mixed_prefixes([0.5], [0.5, 0.4]), "reach depths [1, 2]"),
        (lambda: mixed_prefixes([0.5], [1.5]), "at depth 1 is 1.5"),
        (lambda: measured_prefixes([(False, True)]), "accepted_by_depth is (False, True): only its last"),
        (lambda: CycleCost(-0.1), "draft cost is -0.1, must be a finite number >= 0"),
        (lambda: CycleCost(NAN), "draft cost is nan, must"),
        (lambda: CycleCost(0.1, 0), "verification cost is 0, must be a finite number > 0"),
        (lambda: CycleCost(0.1, float("inf")), "verification cost is inf, must"),
        (lambda: CycleCost(0.1, lambda depth: NAN).time(1), "verification cost is nan, must"),
        (lambda: CycleCost(0.1, 1, -1), "overhead is -1, must be a finite number >= 0"),
        (lambda: CycleCost(0.1).time(-1), "draft_depth is -1, must"),
        (lambda: forecast([0.5], CycleCost(0.1), 2), "draft_depth is 2, must be <= 1"),
        (lambda: best_depth([0.5], CycleCost(0.1), []), "depths is empty, must"),
        (lambda: worth_one_more(NAN, 0.1, 1), "next_probability is nan, must be in 0..1"),
        (lambda: worth_one_more(0.5, NAN, 1), "extra_time is nan, must"),
        (lambda: worth_one_more(0.5, 0.1, -1), "rate is -1, must"),
    ],
)
def test_a_mistake_is_one_clear_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below, as plain text
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- the command ------------------------------------------------------------------------------------------


def rows(capsys: pytest.CaptureFixture[str], *flags: str) -> list[list[str]]:
    assert main(flags) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()[2:]]


def test_the_command_prints_the_scan(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(capsys)[2:4] == [
        ["0.7", "0.05", "6", "3.058819", "2.353", "no"],
        ["0.7", "0.2", "3", "2.533000", "1.583", "no"],
    ]
    assert len(rows(capsys)) == 6


def test_the_command_takes_other_values(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--alpha", "0", ".7", "--draft-cost", ".05", "--max-depth", "6")
    assert rows(capsys, *flags) == [
        ["0", "0.05", "1", "1.000000", "0.952", "yes"],
        ["0.7", "0.05", "6", "3.058819", "2.353", "no"],
    ]
    assert rows(capsys, *flags, "--verification", "2.9", "--overhead", ".1")[1][2:] == [
        "6",
        "3.058819",
        "0.927",
        "yes",
    ]


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    page = (Path(__file__).parent.parent / "docs" / "cost-model.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in page


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--alpha 1.2", "acceptance rate is 1.2"),
        ("--alpha nan", "acceptance rate is nan"),
        ("--alpha many", "argument --alpha: invalid float value: 'many'"),
        ("--draft-cost -1", "draft cost is -1.0"),
        ("--verification 0", "verification cost is 0.0"),
        ("--overhead inf", "overhead is inf"),
        ("--max-depth 0", "--max-depth is 0, must be in 1..64"),
        ("--max-depth 65", "--max-depth is 65, must be in 1..64"),
    ],
)
def test_a_mistake_ends_the_command_with_one_line(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(flags.split())
    except SystemExit as ended:  # how argparse ends
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err.startswith(f"error: {message}")
    assert printed.err.count("\n") == 1
