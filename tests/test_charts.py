"""What is drawn: places, round numbers, the best of a grid and its edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_whole import BEST, LEARNED, whole_report

from evaluation.charts import bars, cross_check, forest, heat_map, scatter, strip
from evaluation.charts.scale import linear, logarithmic
from evaluation.roles import headline, roles
from evaluation.schema_parts import ActionCount, GridPoint, StripCycle, StripText

NUMBERS = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8)


def points(rates: dict[tuple[int, int], float]) -> list[GridPoint]:
    return [
        GridPoint(drafter="head", lookup_depth=None, draft_depth=depth, verification_size=size,
                  tokens_per_second=rate)
        for (depth, size), rate in rates.items()
    ]  # fmt: skip


# --- scales -----------------------------------------------------------------------------------------------


@given(NUMBERS, st.booleans())
def test_places_keep_the_order_and_stay_inside(values: list[float], logs: bool) -> None:
    scale = (logarithmic if logs else linear)(values)
    places = [scale.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)
    ticks = scale.ticks()
    assert [tick.place for tick in ticks] == sorted(tick.place for tick in ticks)
    assert len(ticks) <= 8


def test_ticks_are_round_and_stand_where_they_say() -> None:
    scale = linear([1.0, 2.0])
    assert [tick.label for tick in scale.ticks()] == ["1.0", "1.5", "2.0"]
    assert scale.ticks()[1].place == scale.place(1.5) == 50
    ratios = logarithmic([0.9, 1.1])
    ticks = {tick.label: tick.place for tick in ratios.ticks(percent=True)}
    assert ticks["0"] == ratios.place(1.0)
    assert ticks["-10"] == ratios.place(0.9)
    assert ticks["+10 %"] == ratios.place(1.1)


def test_equal_ratios_are_equally_far_apart_on_a_logarithmic_axis() -> None:
    scale = logarithmic([0.5, 2.0])
    assert scale.place(1.0) == pytest.approx(50)
    assert scale.place(0.0) == 0


# --- grids and actions ------------------------------------------------------------------------------------


def test_the_best_of_a_grid_is_marked_and_its_edge_warned_of() -> None:
    rates = {(depth, size): 100.0 - depth - size for depth in (1, 2, 4) for size in (3, 5, 8)}
    (inside,) = heat_map.grids(points(rates | {(2, 5): 200.0}))
    assert [(depth, cell.text) for depth, cells in inside.rows for cell in cells if cell.best] == [
        (2, "200.0")
    ]
    assert inside.best == "Best: depth 2, size 5, 200.0 tokens/s."
    assert inside.warning == ""
    (deep,) = heat_map.grids(points(rates | {(4, 5): 200.0}))
    assert deep.warning == "The best lies on the edge of the grid: larger depths were not tried."
    (small,) = heat_map.grids(points(rates))  # nothing is shallower than a draft of one level
    assert small.warning == "The best lies on the edge of the grid: smaller sizes were not tried."


def test_a_few_scattered_settings_are_no_map() -> None:
    assert heat_map.grids(points({(1, 3): 9.0, (2, 5): 9.0, (6, 16): 8.0})) == []
    assert len(heat_map.grids(points({(1, 3): 9.0, (1, 5): 9.0, (2, 5): 8.0}))) == 1


def test_actions_are_shares_of_cycles() -> None:
    counts = [(0, 0, 298), (2, 5, 697), (2, 8, 5)]
    found = heat_map.actions(
        LEARNED,
        [
            ActionCount(draft_depth=depth, verification_size=size, cycles=cycles)
            for depth, size, cycles in counts
        ],
    )
    assert [[cell.text for cell in cells] for _, cells in found.rows] == [
        ["30 %", "", ""],
        ["", "70 %", "<1 %"],
    ]
    assert found.best == "Commonest: depth 2, size 5, 70 % of 1000 cycles."


# --- marks ------------------------------------------------------------------------------------------------


def test_every_arm_is_a_point_and_faster_ones_are_higher() -> None:
    found = scatter.speed_against_tau(whole_report())
    assert found is not None
    assert found.points[0].name == LEARNED
    heights = [point.y for point in found.points]
    assert heights == sorted(heights)
    furthest = max(found.points, key=lambda point: point.x)
    assert furthest.name == "merged 6x16"
    assert found.ray is not None
    plain = next(point for point in found.points if point.name == "plain")
    left, low, right, high = found.ray
    assert low + (high - low) * (plain.x - left) / (right - left) == pytest.approx(plain.y, abs=0.1)


def test_numbers_of_points_that_lie_together_stand_on_different_sides() -> None:
    sides = scatter._sides([(50.0, 50.0), (50.0, 50.0), (50.0, 50.0)], ["1", "2", "3"])
    assert len(set(sides)) == 3


def test_a_forest_writes_large_ratios_as_multiples_and_small_ones_in_per_cent() -> None:
    report = whole_report()
    assert report.slices is not None
    over_plain, over_best, _ = forest.slices(report, report.slices.by_category)
    assert over_plain.title == "learned over plain"
    assert over_plain.rows[0].value.endswith("×")
    assert over_best.rows[0].value.endswith(" %")
    few = next(row for row in over_best.rows if row.label == "writing")
    assert (few.low, few.high, few.interval, few.apart) == (None, None, "no interval", False)
    assert not any(row.claimed for row in over_best.rows)
    for row in over_best.rows:
        assert row.low is None or row.high is None or row.low < row.mark < row.high


def test_the_phases_of_a_token_sum_to_its_time() -> None:
    stacks = bars.stacks(whole_report())
    assert stacks[0].name == LEARNED
    for stack in stacks:
        rate = whole_report().arms[stack.name].tokens_per_second
        assert stack.total == pytest.approx(1000 / rate)
        assert sum(part[3] for part in stack.parts) == pytest.approx(stack.total)
    assert sum(part[2] for part in stacks[-1].parts) == pytest.approx(100, abs=0.1)


def test_lengths_are_shares_of_the_same_columns() -> None:
    report = whole_report()
    found = bars.lengths(report, roles(report))
    assert [one.name for one in found] == [LEARNED, BEST]
    for one in found:
        assert sum(one.shares) == pytest.approx(1)
    assert max(width for one in found for width in one.widths) == 100


def test_predictions_share_an_axis() -> None:
    found = cross_check.predictions(whole_report())
    assert found is not None
    first = found.depths[0]
    assert (first.joint[0] > first.measured[0]) == (first.joint[1] > first.measured[1])
    assert first.off == f"{(first.joint[1] / first.measured[1] - 1) * 100:+.1f} %"


def test_the_headline_is_the_smallest_gain_over_a_fixed_setting() -> None:
    found = headline(whole_report())
    assert found is not None
    assert (found.a, found.b) == (LEARNED, BEST)
    assert roles(whole_report()).best_fixed == BEST  # not the A/A pair's second arm


# --- texts ------------------------------------------------------------------------------------------------


def test_a_strip_shows_depth_what_was_accepted_and_the_ends_of_lines() -> None:
    cycles = [
        StripCycle(draft_depth=4, verification_size=8, tokens=[" a", "\n", " b"]),
        StripCycle(draft_depth=0, verification_size=0, tokens=[" c"]),
        StripCycle(draft_depth=1, verification_size=2, tokens=["  "]),
    ]
    texts = [StripText(question_id="q", category="chat", cycles=cycles)]
    (found,) = strip.strips(texts)
    assert [(one.draft_depth, one.shade, one.lead, one.accepted, one.closing) for one in found.cycles] == [
        (4, 1.0, " ", "a↵\n", " b"), (0, 0.0, " ", "", "c"), (1, 0.25, "", "", "  "),
    ]  # fmt: skip
    assert found.cycles[0].said == "drafted 4 levels, verified 8, accepted 2, committed 3"
    assert found.cycles[1].said == "plain step, accepted 0, committed 1"
    assert found.summary == "5 tokens in 3 cycles (tau 1.67), 1.7 levels drafted in the mean, 1 plain step"
    assert strip.depths(texts) == [0, 1, 2, 3, 4]
