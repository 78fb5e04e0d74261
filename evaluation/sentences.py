"""What a report says in words, once for the page and for the terminal."""

from __future__ import annotations

import math

from evaluation.roles import headline, main_arms, roles
from evaluation.schema import Report
from evaluation.schema_parts import ComparisonResult

# Above so many times plain decoding a gain reads better as a multiple than as a percentage.
_MULTIPLE = 1.5


def gain(ratio: float) -> str:
    """'+6.1 %'."""
    return f"{(ratio - 1) * 100:+.1f} %"


def value(row: ComparisonResult) -> str:
    """'+6.1 %', or '1.71×' of a large ratio."""
    return f"{row.ratio:.2f}×" if row.ratio >= _MULTIPLE else gain(row.ratio)


def bounds(row: ComparisonResult) -> str:
    """'+3.2 to +9.1 %', or '1.57 to 1.87' of a large ratio."""
    if row.low is None or row.high is None:
        return "no interval"
    if row.ratio >= _MULTIPLE:
        return f"{row.low:.2f} to {row.high:.2f}"
    return f"{(row.low - 1) * 100:+.1f} to {gain(row.high)}"


def spelled(row: ComparisonResult) -> str:
    """'+6.1 % (+3.2 to +9.1 %)'."""
    return f"{value(row)} ({bounds(row)})"


def is_claimed(report: Report, row: ComparisonResult) -> bool:
    """Nothing is claimed that the A/A check forbids, whatever the row itself says."""
    return row.claimed and _forbidden(report, row) is None


def standing(report: Report, row: ComparisonResult) -> str:
    """Whether a difference is claimed, and if not, why not."""
    if row.low is None or row.high is None:
        return f"no claim: {_questions(row.groups)}, too few for an interval"
    if forbidden := _forbidden(report, row):
        return f"no claim: {forbidden}"
    if row.claimed:
        return "claimed: faster" if row.ratio > 1 else "claimed: slower"
    if row.low > 1 or row.high < 1:
        return f"no claim after Holm's correction for {len(report.comparisons)} comparisons"
    return "no claim: the interval holds 0"


def _forbidden(report: Report, row: ComparisonResult) -> str | None:
    aa = report.aa
    if aa is None:
        return None
    if not aa.usable:
        return "the A/A check failed"
    if aa.half_width is not None and row.ratio > 0 and abs(math.log(row.ratio)) < aa.half_width:
        return f"smaller than the A/A half-width, {least(aa.half_width)}"
    return None


def same_arm(report: Report) -> str:
    """What measuring an arm against itself gave, and what follows from it."""
    aa = report.aa
    if aa is None:
        return "A/A check: none in this run, so what noise alone does to a difference is not known."
    interval = ""
    if aa.low is not None and aa.high is not None:
        interval = f" (99.9 % interval {(aa.low - 1) * 100:+.1f} to {gain(aa.high)})"
    found = f"{aa.a} over {aa.b}, the same setting, came to {gain(aa.ratio)}{interval}"
    if not aa.usable:
        return f"Unusable: {found}. Nothing may differ from itself: no difference of this run is claimed."
    if aa.half_width is None:
        return f"A/A check passed: {found}; too few questions for a half-width."
    return f"A/A check passed: {found}. No difference below {least(aa.half_width)} is claimed."


def least(half_width: float) -> str:
    """The smallest difference that is claimed, of a half-width in log-ratio."""
    return f"{math.expm1(half_width) * 100:.2f} %"


def power(report: Report) -> str | None:
    """How many questions it takes to see an effect."""
    needs = report.power
    if needs is None:
        return None
    enough = "enough" if needs.groups >= needs.groups_needed else "too few"
    return (
        f"Power: {_questions(needs.groups)} in this run; to see {math.expm1(needs.effect) * 100:.1f} % takes "
        f"{needs.groups_needed} (power 0.8), so these are {enough} for that."
    )


def texts(report: Report) -> str:
    """Whether the text was exact."""
    unequal = [name for name, arm in report.arms.items() if not arm.text_equal]
    if not unequal:
        return "every arm wrote the same tokens as plain decoding."
    return f"{', '.join(unequal)} wrote other tokens than plain decoding in some texts."


def load(report: Report) -> str | None:
    """A warning, if others used the machine."""
    machine = report.machine
    if machine.load_max is None or machine.load_max <= machine.threads + 1:
        return None
    busy = f"load average up to {machine.load_max:.1f} with {machine.threads} threads of our own"
    return f"The machine was busy with other work ({busy}): timings are rougher."


def unfinished(report: Report) -> str | None:
    """A warning, if time ran out or blocks stayed disturbed."""
    said = []
    if (
        report.blocks is not None
        and report.blocks_planned is not None
        and report.blocks < report.blocks_planned
    ):
        said.append(f"Time ran out: {report.blocks} of {report.blocks_planned} blocks were decoded.")
    if report.disturbed:
        said.append(
            f"Blocks that other work disturbed in every attempt, and that are counted: {report.disturbed}."
        )
    return " ".join(said) or None


def overhead(report: Report) -> str | None:
    """What asking the policy costs."""
    row = report.overhead
    if row is None:
        return None
    return f"Overhead: {row.a} over {row.b}, the same setting without the policy: {spelled(row)}."


def bound(report: Report) -> str | None:
    """What share of the possible saving is reached."""
    found = report.bound
    if found is None:
        return None
    shares = (("reachable", found.reachable_share), ("clairvoyant", found.clairvoyant_share))
    said = [f"{share * 100:.0f} % of the {name} saving" for name, share in shares if share is not None]
    return f"Share of what could be saved over the best fixed setting: {', '.join(said)}." if said else None


def speed_and_tau(report: Report) -> str | None:
    """Whether the arm that accepts most is also the fastest, of those that decoded all prompts."""
    arms = main_arms(report)
    if len(arms) < 2:
        return None
    by_speed = sorted(arms, key=lambda name: arms[name].tokens_per_second, reverse=True)
    longest = max(arms, key=lambda name: arms[name].tau)
    if arms[longest].tau == arms[by_speed[0]].tau:
        return f"Here they agree: {by_speed[0]} is fastest and commits most tokens a cycle."
    rank = by_speed.index(longest) + 1
    return (
        f"They disagree: {longest} commits most tokens a cycle (tau {arms[longest].tau:.2f}) and is number "
        f"{rank} of {len(arms)} in speed; {by_speed[0]} is fastest with tau {arms[by_speed[0]].tau:.2f}."
    )


def headline_said(report: Report) -> str | None:
    """The one comparison that matters most, in a line."""
    row = headline(report)
    if row is None:
        return None
    least = ", the smallest gain over a fixed setting" if roles(report).learned == row.a else ""
    return f"{row.a} over {row.b}{least}: {spelled(row)}; {standing(report, row)}."


def _questions(groups: int) -> str:
    return f"{groups} independent question{'' if groups == 1 else 's'}"
