"""The shipped prompt files keep the shape that the rest of the project relies on."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

PROMPTS = Path(__file__).resolve().parent.parent / "configs" / "prompts"
CATEGORIES = (
    "coding",
    "maths",
    "chat",
    "writing",
    "translation",
    "summarisation",
    "extraction",
    "reasoning",
)
LANGUAGES = ("en", "it", "zh", "es")
KEYS = {"question_id", "category", "language", "turns"}
FILES = {
    "mixed.jsonl": KEYS,
    "multilingual.jsonl": KEYS | {"group"},
}


def _no_repeats(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"repeated key in {keys}"
    return dict(pairs)


def _load(name):
    text = (PROMPTS / name).read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return [json.loads(line, object_pairs_hook=_no_repeats) for line in text[:-1].split("\n")]


@pytest.fixture(scope="module")
def mixed():
    return _load("mixed.jsonl")


@pytest.fixture(scope="module")
def multilingual():
    return _load("multilingual.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_every_line_has_exactly_the_allowed_keys(name):
    for row in _load(name):
        assert set(row) == FILES[name], row
        for key in FILES[name] - {"turns"}:
            assert isinstance(row[key], str), row
            assert row[key], row
        assert row["category"] in CATEGORIES, row
        assert row["language"] in LANGUAGES, row


@pytest.mark.parametrize("name", FILES)
def test_text_is_stored_as_utf8_not_as_escapes(name):
    raw = (PROMPTS / name).read_bytes()
    assert not raw.startswith(b"\xef\xbb\xbf")
    for line, row in zip(raw.decode("utf-8").split("\n"), _load(name), strict=False):
        assert line == json.dumps(row, ensure_ascii=False)


@pytest.mark.parametrize("name", FILES)
def test_turns_are_non_empty_and_only_chat_has_two(name):
    for row in _load(name):
        turns = row["turns"]
        assert isinstance(turns, list), row
        assert len(turns) in ((1, 2) if row["category"] == "chat" else (1,)), row
        for turn in turns:
            assert isinstance(turn, str), row
            assert turn, row
            assert turn == turn.strip(), row


def test_mixed_counts(mixed):
    assert len(mixed) == 120
    counts = Counter(row["category"] for row in mixed)
    assert counts == dict.fromkeys(CATEGORIES, 15)
    assert Counter(row["language"] for row in mixed) == {"en": 120}
    two_turns = sum(len(row["turns"]) == 2 for row in mixed)
    assert 0 < two_turns <= 5


def test_mixed_ids_carry_the_category_and_a_number(mixed):
    wanted = [f"{category}-{i:02d}" for category in CATEGORIES for i in range(1, 16)]
    assert sorted(row["question_id"] for row in mixed) == sorted(wanted)
    for row in mixed:
        assert row["question_id"].rpartition("-")[0] == row["category"]


def test_multilingual_counts(multilingual):
    assert len(multilingual) == 40
    counts = Counter(row["language"] for row in multilingual)
    assert counts == dict.fromkeys(LANGUAGES, 10)
    assert all(len(row["turns"]) == 1 for row in multilingual)


def test_parallel_groups_are_complete(multilingual):
    groups = defaultdict(list)
    for row in multilingual:
        groups[row["group"]].append(row)
    assert set(groups) == {f"parallel-{i:02d}" for i in range(1, 11)}
    for group, rows in groups.items():
        number = group.removeprefix("parallel-")
        assert sorted(row["language"] for row in rows) == sorted(LANGUAGES), group
        assert len({row["category"] for row in rows}) == 1, group
        for row in rows:
            assert row["question_id"] == f"{row['language']}-{number}"


def test_only_the_chinese_prompts_are_in_chinese(multilingual):
    for row in multilingual:
        has_han = any("\u4e00" <= char <= "\u9fff" for char in row["turns"][0])
        assert has_han == (row["language"] == "zh"), row["question_id"]


def test_ids_are_unique_over_both_files(mixed, multilingual):
    ids = [row["question_id"] for row in mixed + multilingual]
    assert len(ids) == len(set(ids)) == 160


def test_first_turns_are_unique_over_both_files(mixed, multilingual):
    # Neither case nor spacing makes a prompt a different one.
    first = Counter(" ".join(row["turns"][0].casefold().split()) for row in mixed + multilingual)
    assert [text for text, count in first.items() if count > 1] == []
