"""Workloads: what loads, what is refused in one line, and that no question is both trained on and tested."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.workload import SPLITS, Request, load_workload, select, split

PROMPTS = Path(__file__).resolve().parent.parent / "configs" / "prompts"


def write(path: Path, *rows: object) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def request(
    name: str, turn: str | None = None, category: str | None = None, group: str | None = None
) -> Request:
    return Request(name, (turn or f"Tell me about {name}.",), category, "en", group or name)


def shipped() -> list[Request]:
    return load_workload([PROMPTS / "mixed.jsonl", PROMPTS / "multilingual.jsonl"])


# --- loading ----------------------------------------------------------------------------------------------


def test_a_line_becomes_a_request(tmp_path: Path) -> None:
    path = write(
        tmp_path / "w.jsonl",
        {"question_id": 82, "category": "qa", "language": "en", "turns": ["a", "b"], "reference": [1]},
        "",
        {"question_id": "it-82", "language": "it", "turns": ["c"]},
        {"question_id": "zh-7", "turns": ["d"]},
        {"question_id": "qa-7", "language": "en", "turns": ["e"]},
        {"question_id": "x", "group": "seven", "turns": ["f"], "category": None},
    )
    assert load_workload([path]) == [
        Request("82", ("a", "b"), "qa", "en", "82"),
        Request("it-82", ("c",), None, "it", "82"),
        Request("zh-7", ("d",), None, None, "7"),
        Request("qa-7", ("e",), None, "en", "qa-7"),
        Request("x", ("f",), None, None, "seven"),
    ]


def test_separators_inside_a_string_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('\ufeff{"question_id": "a", "turns": ["one\u2028two\x85three"]}\r\n', encoding="utf-8")
    assert load_workload([path])[0].turns == ("one\u2028two\x85three",)


GOOD = {"question_id": "a", "turns": ["x"]}
BAD_LINES = {
    "not JSON": ('{"question_id": ', "not a JSON object"),
    "not an object": ("[1, 2]", "a list, not a JSON object"),
    "no id": ({"turns": ["x"]}, "question_id is missing"),
    "no turns": ({"question_id": "b"}, "turns is missing"),
    "a flag as id": ({"question_id": True, "turns": ["x"]}, "question_id is a bool"),
    "blank id": ({"question_id": " ", "turns": ["x"]}, "question_id is empty"),
    "turns no list": ({"question_id": "b", "turns": "x"}, "turns must be a list"),
    "turns empty": ({"question_id": "b", "turns": []}, "turns must be a list"),
    "blank turn": ({"question_id": "b", "turns": ["x", "\n"]}, "turn 2 is empty"),
    "number as turn": ({"question_id": "b", "turns": [3]}, "turn 1 is a int"),
    "number as category": ({"question_id": "b", "turns": ["x"], "category": 3}, "category is a int"),
    "half a surrogate": ('{"question_id": "b", "turns": ["\\ud800"]}', "surrogate"),
    "twice": (GOOD, "'a' occurs a second time"),
    "too deep": ("[" * 100_000, "not a JSON object"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_refused_in_one_line_with_its_number(case: str, tmp_path: Path) -> None:
    row, says = BAD_LINES[case]
    path = write(tmp_path / "w.jsonl", GOOD, "", row)
    with pytest.raises(ValueError, match=r"w\.jsonl, line 3") as caught:
        load_workload([path])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        load_workload([tmp_path / "none.jsonl"])
    with pytest.raises(ValueError, match="cannot be read"):
        load_workload([tmp_path])
    full, empty = write(tmp_path / "full.jsonl", GOOD), write(tmp_path / "empty.jsonl", "", " ")
    with pytest.raises(ValueError, match=r"empty\.jsonl holds no request"):
        load_workload([full, empty])
    (tmp_path / "latin.jsonl").write_bytes(b'{"question_id": "a", "turns": ["x"]}\n\xe8\n')
    with pytest.raises(ValueError, match="line 2: not UTF-8"):
        load_workload([tmp_path / "latin.jsonl"])


def test_an_id_in_two_files_is_refused(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", GOOD), write(tmp_path / "b.jsonl", GOOD)
    with pytest.raises(ValueError, match=r"b.jsonl, line 1.*second time"):
        load_workload([first, second])


# --- splitting --------------------------------------------------------------------------------------------


def test_splits_have_their_shares() -> None:
    parts = split([request(f"q{number}") for number in range(4000)])
    shares = {name: len(rows) / 4000 for name, rows in parts.items()}
    assert shares == pytest.approx({"train": 0.30, "validation": 0.15, "test": 0.55}, abs=0.025)


def test_a_split_is_the_same_on_every_machine() -> None:
    # computed once and written down: whoever changes the hash moves trained-on prompts into the test split
    parts = split([request(f"q{number}") for number in range(12)])
    found = {name: [int(row.question_id[1:]) for row in rows] for name, rows in parts.items()}
    assert found == {"train": [1, 6, 8, 9, 11], "validation": [2, 5, 7], "test": [0, 3, 4, 10]}


names = st.text("abcdef", min_size=1, max_size=2)
workloads = st.lists(st.tuples(names, names), min_size=1, max_size=30).map(
    lambda pairs: [request(str(n), turn, group=group) for n, (group, turn) in enumerate(pairs)]
)


@given(workloads, st.randoms())
def test_groups_and_equal_first_turns_never_part(rows: list[Request], random: object) -> None:
    parts = split(rows)
    assert sorted(row.question_id for part in parts.values() for row in part) == sorted(
        row.question_id for row in rows
    )
    place = {row.question_id: name for name, part in parts.items() for row in part}
    for one in rows:
        for other in rows:
            if one.group == other.group or one.turns[0] == other.turns[0]:
                assert place[one.question_id] == place[other.question_id]
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = {row.question_id: name for name, part in split(shuffled).items() for row in part}
    assert again == place


def test_case_and_spacing_do_not_make_another_first_turn() -> None:
    # 40 groups, one turn: one split, so exactly one of the parts is not empty
    rows = [request(f"q{n}", "Why is  the sky BLUE?" if n % 2 else "why is the sky blue?") for n in range(40)]
    assert sorted(map(len, split(rows).values())) == [0, 0, 40]


def test_every_split_of_the_shipped_prompts_has_every_category_and_language() -> None:
    rows = shipped()
    for name, part in split(rows).items():
        assert {row.category for row in part} == {row.category for row in rows}, name
        assert {row.language for row in part} == {"en", "it", "zh", "es"}, name


# --- selecting --------------------------------------------------------------------------------------------


def test_without_a_limit_a_split_comes_whole_and_in_order() -> None:
    rows = shipped()
    for name in SPLITS:
        assert select(rows, name) == split(rows)[name]


def test_a_limit_takes_equally_from_every_category() -> None:
    rows = shipped()
    for limit in (8, 16, 24):
        chosen = select(rows, "test", limit)
        assert set(Counter(row.category for row in chosen).values()) == {limit // 8}
    assert select(rows, "test", 11)[:8] == select(rows, "test", 8)
    assert len(select(rows, "test", 10_000)) == len(split(rows)["test"])


def test_a_category_that_runs_out_leaves_its_places_to_others() -> None:
    rows = [request(f"q{n}", category="rare" if n < 3 else "common") for n in range(200)]
    counts = Counter(row.category for row in select(rows, "test", 20))
    rare = sum(row.category == "rare" for row in split(rows)["test"])
    assert counts == {"rare": rare, "common": 20 - rare}


def test_a_limit_takes_a_translation_only_after_other_questions() -> None:
    rows = [request(f"q{n}-{copy}", group=f"q{n}") for n in range(40) for copy in range(4)]
    groups = len({row.group for row in split(rows)["test"]})
    assert len({row.group for row in select(rows, "test", groups)}) == groups


def test_a_limit_does_not_follow_the_order_of_the_file() -> None:
    rows = [request(f"q{n:03d}", category="one") for n in range(100)]
    chosen = select(rows, "test", 10)
    assert chosen == select(rows[::-1], "test", 10)
    assert chosen != split(rows)["test"][:10]


def test_filters_keep_what_they_name_and_refuse_what_is_unknown() -> None:
    rows = shipped()
    chosen = select(rows, "test", categories=["maths"], languages=["en"])
    assert chosen
    assert {(row.category, row.language) for row in chosen} == {("maths", "en")}
    with pytest.raises(ValueError, match="category 'math'; the workload has: chat, coding"):
        select(rows, "test", categories=["math"])
    with pytest.raises(ValueError, match="language 'fr'"):
        select(rows, "test", languages=["fr"])


def test_an_empty_split_is_refused_by_name() -> None:
    one = [request("q0")]
    (name,) = (name for name, rows in split(one).items() if rows)
    for other in SPLITS:
        if other == name:
            assert select(one, other) == one
        else:
            with pytest.raises(ValueError, match=f"the {other} split of 1 requests is empty"):
                select(one, other)
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        select(one, "dev")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit of 0"):
        select(one, name, 0)
