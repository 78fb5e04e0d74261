"""What a report does not hold, and why: a sentence each, instead of empty boxes."""

from __future__ import annotations

from evaluation.roles import roles
from evaluation.schema import Report


def absent(report: Report) -> list[str]:
    """In the order of the page."""
    arms = report.arms.values()
    no_policy = roles(report).learned is None
    lacks = (
        (no_policy, "A learned policy: none was given, so fixed settings meet plain decoding alone."),
        (
            report.aa is None,
            "The A/A check: no arm was measured against itself. What noise alone does to a difference is not "
            "known; believe no small one.",
        ),
        (report.power is None, "Power: how many questions a given effect takes was not worked out."),
        (
            report.replay is None,
            "Replay: there was no recording of the test texts with a cost profile, so arms that were not "
            "decoded, whole grids and the bounds are missing.",
        ),
        (
            report.slices is None,
            "Intervals by category, language and temperature: there are too few questions, or they were not "
            "asked for. The plain ratios are given.",
        ),
        (
            not report.same_questions,
            "The same questions in several languages: the prompts hold none that all languages share.",
        ),
        (not any(arm.latency for arm in arms), "Latency: it was not recorded."),
        (not any(arm.emitted for arm in arms), "Tokens by cycle: cycles were not counted."),
        (not any(arm.actions for arm in arms), "Actions: they were not counted."),
        (not report.reliability, "Reliability of scores: it takes a recording."),
        (not report.cross_check, "The cross-check of the cost model: no fixed depths were decoded for it."),
        (not report.regimes, "Other costs: the texts were not replayed with them."),
        (not report.strips and not no_policy, "Texts token by token: none was kept."),
        (report.command is None, "The exact command: it was not recorded; the configuration below is whole."),
    )
    return [sentence for missing, sentence in lacks if missing]
