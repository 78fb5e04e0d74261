"""report.html says what report.json says, whatever is in it, and asks nothing of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from made_up import made_up, printed
from made_up_whole import AGAIN, BEST, LEARNED, compared, whole_report
from page import Page

from evaluation import html
from evaluation.html import render, write_html
from evaluation.schema import Report

ABSENT: dict[str, Any] = {
    **dict.fromkeys(
        (
            "aa",
            "power",
            "overhead",
            "blocks",
            "blocks_planned",
            "bound",
            "replay",
            "slices",
            "reliability",
            "collapse",
            "policy",
            "command",
        )
    ),
    **{name: [] for name in ("comparisons", "grid", "cross_check", "regimes", "strips")},
    **{
        name: {}
        for name in (
            "free_running",
            "same_questions",
            "by_category",
            "by_language",
            "by_temperature",
            "versions",
        )
    },
}
ARM_ABSENT: dict[str, Any] = {
    **dict.fromkeys(("latency", "over_plain", "peak_memory_mb", "source", "tuned")),
    "emitted": [],
    "actions": [],
    "acceptance_rate": [],
}
SECTIONS = [
    "verdict", "arms", "comparisons", "grid", "tau", "actions", "time", "workload", "latency", "lengths",
    "replay", "regimes", "reliability", "cross-check", "strips", "run",
]  # fmt: skip
HOSTILE = "</p></style><script>alert(1)</script><img src=x onerror='alert(2)'>\"'`&amp;{{ 7*7 }}{% raw %}"
UNSEEN = "a\x00b\u202ec\x1b[31m"


@pytest.fixture(scope="module")
def whole() -> Page:
    return Page(render(whole_report()))


def stripped(report: Report, parts: set[str], of_arms: set[str], arms: set[str]) -> Report:
    """Without these parts, without these of each arm, without these arms."""
    given = report.model_dump(mode="json")
    given |= {name: ABSENT[name] for name in parts}
    given["arms"] = {
        name: arm | {part: ARM_ABSENT[part] for part in of_arms}
        for name, arm in given["arms"].items()
        if name not in arms
    }
    return Report.model_validate(given)


# --- whatever is in it ------------------------------------------------------------------------------------


@settings(max_examples=25, phases=[Phase.generate])  # a page takes 0.1 s: shrinking would take minutes
@given(
    parts=st.sets(st.sampled_from(sorted(ABSENT))),
    of_arms=st.sets(st.sampled_from(sorted(ARM_ABSENT))),
    without=st.sets(st.sampled_from([LEARNED, "fullinfo", "ltd", BEST, "composite 2x3", "plain"])),
    number=st.floats(0, 1e9),
    words=st.text(max_size=30),
)
def test_any_report_gives_a_page(
    parts: set[str], of_arms: set[str], without: set[str], number: float, words: str
) -> None:
    whole = whole_report()
    arms = {
        **whole.arms,
        words or "?": whole.arms["usual 4x8"].model_copy(update={"tokens_per_second": number}),
    }
    compares = [compared(LEARNED, "usual 4x8", number, 0.1), compared(words, words, 0.0, 0.1, groups=3)]
    report = whole_report(
        arms={name: arm.model_dump() for name, arm in arms.items()},
        comparisons=compares,
        strips=[{"question_id": words, "category": words, "cycles": []}],
    )
    page = Page(render(stripped(report, parts, of_arms, without)))
    assert len(set(page.ids)) == len(page.ids)
    links = [one.attributes["href"] for one in page.all("a")]
    assert {link.removeprefix("#") for link in links} <= set(page.ids)


def test_strings_of_others_stay_text() -> None:
    cycle = {"draft_depth": 1, "verification_size": 1, "tokens": [HOSTILE, HOSTILE]}
    given = whole_report().model_dump(mode="json")
    given["arms"][HOSTILE] = given["arms"][LEARNED] | {"source": HOSTILE, "tuned": HOSTILE}
    given["comparisons"].append(compared(HOSTILE, HOSTILE, 1.1, 0.01))
    given["strips"] = [{"question_id": HOSTILE, "category": HOSTILE, "cycles": [cycle]}]
    given["by_category"][HOSTILE] = given["by_category"]["chat"]
    given["workload"]["categories"][HOSTILE] = 1
    given["machine"]["cpu"] = given["models"]["target"] = given["verdict"] = given["command"] = HOSTILE
    given["config"] = {HOSTILE: HOSTILE}
    given["collapse"] = {"collapse": [HOSTILE]}
    page = Page(render(Report.model_validate(given)))
    assert not page.all("script")
    assert not page.all("img")
    assert not [name for one in page.elements for name in one.attributes if name.startswith("on")]
    assert len(page.all("style")) == 1
    assert page.by_id("verdict").text == HOSTILE
    assert page.by_id("strips").text.count(HOSTILE) >= 4
    assert page.by_id("arms").text.count(HOSTILE) >= 3
    assert HOSTILE in page.by_id("run").text


def test_what_cannot_be_seen_is_shown() -> None:
    assert Page(render(whole_report(verdict=UNSEEN))).by_id("verdict").text == "a�b�c�[31m"


# --- what it says -----------------------------------------------------------------------------------------


def test_the_verdict_is_the_first_thing_said(whole: Page) -> None:
    (first,) = whole.all("h1")
    assert first.words == whole_report().verdict
    assert whole.root.text.index(first.text) < whole.root.text.index("Arms")


def test_every_part_of_a_whole_report_has_its_section(whole: Page) -> None:
    assert [name for name in SECTIONS if name not in whole.ids] == []
    assert "absent" not in whole.ids
    assert "free-running" in whole.ids


def test_every_number_of_the_arms_is_on_the_page(whole: Page) -> None:
    rows = {row.all("th")[0].words: [cell.words for cell in row.all("td")] for row in _rows(whole, "arms")}
    for name, arm in whole_report().arms.items():
        (cells,) = [cells for label, cells in rows.items() if label.startswith(f"{name}{arm.kind}")]
        assert cells[1] == f"{arm.speedup_vs_plain:.2f}"
        assert cells[2] == f"{arm.tokens_per_second:.1f}"
        assert cells[4:7] == [f"{arm.tau:.2f}", f"{100 * arm.policy_overhead_fraction:.2f}", "yes"]
        assert cells[7] == f"{arm.peak_memory_mb:.0f}"


def test_the_terminal_says_the_same(whole: Page) -> None:
    text = " ".join(printed(whole_report()).split())
    page = whole.root.text.replace("\n", " ")
    for sentence in (
        "A/A check passed: composite 2x5 over composite 2x5 again, the same setting, came to -0.2 %",
        "No difference below 0.45 % is claimed.",
        "Power: 61 independent questions in this run; to see 2.0 % takes 54",
        "Time ran out: 270 of 276 blocks were decoded. Blocks that other work disturbed in every attempt",
        "-1.2 to +0.4 %",
        "74 % of the reachable saving, 19 % of the clairvoyant saving",
        "They disagree: merged 6x16 commits most tokens a cycle (tau 2.71) and is number 15 of 16 in speed",
        "every arm wrote the same tokens as plain decoding.",
        "no claim: smaller than the A/A half-width, 0.45 %",
        "+10.8 to +14.4 %",
        "1.92 to 1.99",
        whole_report().verdict,
    ):
        assert sentence in text
        assert sentence in page


def test_a_failed_check_of_an_arm_against_itself_is_said_in_red_and_forbids_claims() -> None:
    aa = {
        "a": BEST,
        "b": AGAIN,
        "ratio": 1.03,
        "low": 1.01,
        "high": 1.05,
        "half_width": 0.01,
        "usable": False,
    }
    report = whole_report(aa=aa)
    page = Page(render(report))
    assert page.by_id("verdict").words.startswith("Unusable ")
    (stamp,) = [one for one in page.elements if one.attributes.get("class") == "stamp"]
    assert stamp.text == "Unusable"
    claims = page.by_id("comparisons")
    assert claims.text.count("no claim: the A/A check failed") == len(report.comparisons)
    assert not [row for row in claims.all("tr") if row.attributes.get("class") == "claimed"]
    assert "no claim: the A/A check failed" in printed(report)
    assert "Unusable: composite 2x5 over composite 2x5 again" in " ".join(printed(report).split())


def test_a_small_report_leaves_no_box_empty_and_says_what_is_missing() -> None:
    report = made_up(8, plain=10, fixed=15, weaker=14, learned=18)
    page = Page(render(stripped(report, set(ABSENT) - {"comparisons", "grid"}, set(ARM_ABSENT), set())))
    assert [name for name in SECTIONS if name in page.ids] == [
        "verdict", "arms", "comparisons", "grid", "tau", "time", "run",
    ]  # fmt: skip
    missing = [item.text.partition(":")[0] for item in page.by_id("run").all("li")]
    assert missing[:3] == ["The A/A check", "Power", "Replay"]
    assert len(missing) == 13
    assert not [
        one for one in page.elements if one.tag in ("tbody", "ul", "ol", "dl", "svg") and not one.children
    ]


def test_plain_decoding_alone_is_reported_too() -> None:
    page = Page(render(made_up(3, plain=10)))
    assert page.by_id("verdict").words == "Only plain decoding was measured, so there is nothing to compare."
    assert "tau" not in page.ids
    assert "A learned policy: none was given" in page.by_id("run").words


def test_a_collapsed_policy_is_called_one() -> None:
    report = whole_report(collapse={"collapse": ["it answers alike whatever it sees"]})
    boxes = [one for one in Page(render(report)).elements if one.attributes.get("class") == "alarm box"]
    assert [one.words for one in boxes] == ["The policy collapsed:it answers alike whatever it sees"]


# --- one file ---------------------------------------------------------------------------------------------


def test_nothing_on_the_page_asks_a_network(whole: Page) -> None:
    for one in whole.elements:
        assert "src" not in one.attributes
        assert "srcset" not in one.attributes
        link = one.attributes.get("href", "#")
        assert link.startswith("#") or link == "data:,", link
    source = render(whole_report())
    assert "url(" not in source
    assert "@import" not in source
    policies = [one.attributes.get("http-equiv") for one in whole.all("meta")]
    assert "Content-Security-Policy" in policies
    assert len(source.encode()) < 1_000_000


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = whole_report()
    write_html(tmp_path, report)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render(report)

    monkeypatch.setattr(html, "render", lambda report: "half a character \ud800")  # fails in the file's midst
    with pytest.raises(UnicodeEncodeError):
        write_html(tmp_path, report)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def _rows(page: Page, section: str) -> list[Any]:
    return [row for row in page.by_id(section).all("tr") if row.all("td") and row.all("th")]
