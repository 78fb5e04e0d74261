"""What a target is asked to write, and repetition loops."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import save_tiny_model

from decoding.models import LoadedModel, load_model
from decoding.repetition import loop_cut
from decoding.text_plans import Frame, Opening, Planner, Text, encode, frame_of, read_openings
from decoding.text_rows import Ask, RowWriter, Script, Written
from decoding.workload import load_workload

ROOT = Path(__file__).resolve().parent.parent
OPENINGS = [
    Opening("coding", "def f"),
    Opening("chat", "Hi"),
    Opening("prose", "Say", ("Sum: {passage}!", "{passage} ok?")),
]
BEFORE, AFTER, STOP = (300, 301), (302, 303), 299


def answer(script: Script[Text], *answers: Written) -> tuple[list[Ask], Text]:
    """Play the target: the asks, and the text that the script makes of the answers."""
    asks = [next(script)]
    more, text = answer_from(script, *answers)
    return [*asks, *more], text


def answer_from(script: Script[Text], *answers: Written) -> tuple[list[Ask], Text]:
    """The same for a script whose first ask was taken already."""
    asks: list[Ask] = []
    for written in answers[:-1]:
        asks.append(script.send(written))
    with pytest.raises(StopIteration) as finished:
        script.send(answers[-1])
    return asks, finished.value.value


class Letters:
    """A tokenizer with one token a letter and a chat template, of special ids 299 to 303."""

    chat_template = "yes"
    all_special_ids = [STOP, *BEFORE, *AFTER]
    bos_token_id = 298
    eos_token_id = STOP

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        signs = {"«": BEFORE[0], "‹": BEFORE[1], "›": AFTER[0], "»": AFTER[1]}
        return {"input_ids": [signs.get(letter, ord(letter) % 256) for letter in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        return f"«‹{messages[0]['content']}›»"


def letters(**changes: Any) -> Any:
    tokenizer = Letters()
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return SimpleNamespace(name="letters", tokenizer=tokenizer, end_ids=frozenset({STOP}))


def scripts(planner: Planner, count: int = 400) -> list[Script[Text]]:
    return [planner.script(np.random.default_rng(number)) for number in range(count)]


def find(planner: Planner, begin: str) -> Script[Text]:
    """A script whose first ask begins so."""
    for number in range(400):
        if next(planner.script(np.random.default_rng(number))).given == encode(Letters(), begin):
            return planner.script(np.random.default_rng(number))
    raise AssertionError(f"no text begins with {begin!r}")


def test_a_turn_of_its_own_then_the_answer() -> None:
    planner = Planner(letters(), OPENINGS, (0.7,), 100)
    turn, reply = [5, 6, 7], [8, 9]
    asks, text = answer(find(planner, ""), Written(turn, AFTER[0]), Written(reply, STOP))
    assert asks[0].fresh
    assert (asks[0].draw.temperature, asks[0].draw.top_k, asks[0].draw.limit) == (1.0, 50, 48)
    assert asks[0].draw.stop_ids >= {STOP, AFTER[0]}
    assert not asks[1].fresh
    assert asks[1].given == list(AFTER)
    assert (asks[1].draw.temperature, asks[1].draw.top_k, asks[1].draw.limit) == (0.7, None, 100 - 7)
    assert asks[1].draw.stop_ids == {STOP}
    assert text == Text([*BEFORE, *turn, *AFTER, *reply, STOP], 7, "free", 0.7, looped=False)


def test_a_turn_begun_for_the_target() -> None:
    begin = encode(Letters(), "def f")
    asks, text = answer(
        find(Planner(letters(), OPENINGS, (0.0,), 100), "def f"), Written([5], None), Written([8], None)
    )
    assert asks[0].given == begin
    assert text == Text([*BEFORE, *begin, 5, *AFTER, 8], 10, "coding", 0.0, looped=False)


def test_an_opening_too_long_is_cut_to_leave_room_for_the_turn_and_the_answer() -> None:
    planner = Planner(letters(), [Opening("coding", "x" * 90)], (0.0,), 80)
    script = next(script for script in scripts(planner) if len(next(script).given))
    _, text = answer_from(script, Written([5] * 8, None), Written([8, 9], STOP))
    assert text.tokens == [*BEFORE, *[ord("x")] * (76 - 16), *[5] * 8, *AFTER, 8, 9, STOP]
    draws = [next(script).draw.limit for script in scripts(planner)]
    assert min(draws) == 8
    assert max(draws) == 48


def test_a_passage_is_quoted_in_a_conversation_of_its_own() -> None:
    """Without its end-of-text; cut where the answer would have no room; told in the text's kind."""
    planner = Planner(letters(), OPENINGS, (0.0,), 120)
    passage = list(range(100, 120))
    for stop, written in ((STOP, passage), (None, passage), (STOP, [*range(100, 200)])):
        turn, reply = Written([5], AFTER[0]), Written([8, 9], STOP)
        asks, text = answer(find(planner, "Say"), turn, Written(written, stop), reply)
        assert asks[1].draw.limit == 40
        assert asks[2].fresh
        before, after = ("Sum: ", "!") if asks[2].given[0] == ord("S") else ("", " ok?")
        kept = written[: 120 - 4 - len(before + after) - 30]
        turn_tokens = [*encode(Letters(), before), *kept, *encode(Letters(), after)]
        assert list(asks[2].given) == [*turn_tokens, *AFTER]
        prompt = [*BEFORE, *turn_tokens, *AFTER]
        assert text == Text([*prompt, 8, 9, STOP], len(prompt), "prose, quoted", 0.0, looped=False)
        assert asks[2].draw.limit == 120 - len(prompt)


def test_a_passage_of_a_few_words_is_a_text_by_itself() -> None:
    asks, text = answer(
        find(Planner(letters(), OPENINGS, (0.0,), 120), "Say"), Written([5], None), Written([7] * 2, STOP)
    )
    assert len(asks) == 2
    assert text.kind == "prose"
    assert text.tokens[-3:] == [7, 7, STOP]


def test_a_loop_at_the_end_of_an_answer_is_cut() -> None:
    """Only where the target did not end the text itself; and never in the prompt."""
    loop = [9, 20, 21, 20, 21, 20, 21, 20]
    for stop, kept in ((None, loop[:5]), (STOP, [*loop, STOP])):
        _, text = answer(
            find(Planner(letters(), [], (0.0,), 100), ""), Written([4, 4, 4], None), Written(loop, stop)
        )
        assert text.tokens == [*BEFORE, 4, 4, 4, *AFTER, *kept]
        assert text.looped == (stop is None)


def test_kinds_and_temperatures_come_in_their_shares() -> None:
    planner = Planner(letters(), OPENINGS, (0.0, 0.0, 0.7, 1.0), 120)
    begins, heats = [], []
    for script in scripts(planner):
        ask = next(script)
        begins.append(len(ask.given))
        heats.append(script.send(Written([5], None)).draw.temperature)
    assert 0.25 < begins.count(0) / 400 < 0.45
    assert 0.3 < (begins.count(5) + begins.count(2)) / 400 < 0.5
    assert 0.15 < begins.count(3) / 400 < 0.35
    assert 0.4 < heats.count(0.0) / 400 < 0.6
    assert 0.15 < heats.count(0.7) / 400 < 0.35
    assert {len(next(script).given) for script in scripts(Planner(letters(), [], (0.0,), 120))} == {0}
    only = {len(next(script).given) for script in scripts(Planner(letters(), OPENINGS[2:], (0.0,), 120))}
    assert only == {0, 3}


def test_without_a_chat_template_texts_are_free() -> None:
    """From the bos token; the second stretch goes on in the same text, if the first did not end it."""
    planner = Planner(letters(chat_template=None), OPENINGS, (0.7,), 100)
    assert planner.frame == Frame((298,), (), planner.frame.turn_stops, frozenset({STOP}), chat=False)
    asks, text = answer(planner.script(np.random.default_rng(0)), Written([5], None), Written([8], STOP))
    assert [list(ask.given) for ask in asks] == [[], []]
    assert text == Text([298, 5, 8, STOP], 2, "free", 0.7, looped=False)
    _, text = answer(planner.script(np.random.default_rng(0)), Written([5], STOP))
    assert text.tokens == [298, 5, STOP]
    assert all(not next(script).given for script in scripts(planner))


def test_a_model_that_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ValueError, match="letters has no chat template and no bos token"):
        frame_of(letters(chat_template=None, bos_token_id=None, eos_token_id=None))
    with pytest.raises(ValueError, match="chat template of letters puts nothing before a user turn"):
        frame_of(letters(apply_chat_template=lambda messages, **_: "‹HELLO›"))

    def refuse(messages: Any, **_: Any) -> str:
        raise RuntimeError("no users here")

    with pytest.raises(ValueError, match="chat template of letters refuses a user turn: no users here"):
        frame_of(letters(apply_chat_template=refuse))
    with pytest.raises(ValueError, match=r"max_length 35 leaves no room .* beside the 4 tokens"):
        Planner(letters(), [], (0.0,), 35)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(str(save_tiny_model(tmp_path_factory.mktemp("model"))), "cpu", "float64")


@pytest.mark.parametrize("max_length", [60, 130])
def test_shipped_openings_give_texts_that_fit(model: LoadedModel, max_length: int) -> None:
    """A byte a token makes every opening and request long: all is cut to fit, nothing is asked beyond it."""
    openings = read_openings(ROOT / "configs" / "prompts" / "openings.jsonl")
    planner = Planner(model, openings, (0.0, 1.0), max_length)
    writer = RowWriter(model.target, planner.frame.before, 32, max_length)
    generators = [np.random.default_rng([1, place]) for place in range(24)]
    for _, text in writer.run([(planner.script(rng), rng) for rng in generators]):
        assert 0 < text.prompt_length <= len(text.tokens) <= max_length
        assert tuple(text.tokens[: len(planner.frame.before)]) == planner.frame.before


def test_shipped_openings_cover_the_tasks_and_are_no_evaluation_prompts() -> None:
    openings = read_openings(ROOT / "configs" / "prompts" / "openings.jsonl")
    tasks = {opening.task for opening in openings}
    assert tasks >= {"coding", "maths", "chat", "writing", "translation", "summarisation", "extraction"}
    assert sum(bool(opening.then) for opening in openings) >= 30
    assert all(opening.begin == opening.begin.rstrip(" ") for opening in openings)
    files = [ROOT / "configs" / "prompts" / name for name in ("mixed.jsonl", "multilingual.jsonl")]
    asked = [request.turns[0] for request in load_workload(files)]
    for opening in openings:
        if len(opening.begin) >= 40:
            assert not any(turn.startswith(opening.begin) for turn in asked), opening.begin
        assert opening.begin not in asked


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"task": "x"}', "needs `task` and `begin`"),
        ("[1]", "needs `task` and `begin`"),
        ('{"task": "x", "begin"', "needs `task` and `begin`"),
        ('{"task": "x", "begin": 5}', "must be texts that are not empty"),
        ('{"task": "x", "begin": ""}', "must be texts that are not empty"),
        ('{"task": "x", "begin": "y", "then": 5}', "needs `task` and `begin`"),
        ('{"task": "x", "begin": "y", "then": ["z"]}', r"must hold \{passage\}"),
    ],
)
def test_an_unreadable_opening_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "openings.jsonl"
    path.write_text(json.dumps({"task": "a", "begin": "b"}) + "\n\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"openings .*openings.jsonl, line 3: .*{says}") as caught:
        read_openings(path)
    assert "\n" not in str(caught.value)
    assert read_openings(None) == []
    with pytest.raises(ValueError, match="are not readable"):
        read_openings(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        ([], None),
        ([1, 1], None),
        ([5, 1, 1, 1], 3),
        ([5, 1, 1, 1, 1, 1], 3),
        ([1, 2, 1, 2, 1], None),
        ([1, 2, 1, 2, 1, 2], 4),
        ([9, 1, 2, 1, 2, 1, 2, 1], 5),
        ([1, 1, 1, 2], None),
        ([7, 8, 9, 1, 2, 1, 2], None),
        ([7, *([1, 1, 2] * 3)], 7),
        ([7, *range(10, 42), *range(10, 42), *range(10, 42)], 65),
        ([7, *range(10, 43), *range(10, 43), *range(10, 43)], None),
    ],
)
def test_loops(tokens: list[int], kept: int | None) -> None:
    """The same n-gram, n up to 32, three times at the very end: kept until its second occurrence."""
    assert loop_cut(tokens) == kept


def test_a_loop_may_have_to_be_long() -> None:
    assert loop_cut([5] * 47, least=48) is None
    assert loop_cut([5] * 48, least=48) == 2
    assert loop_cut([1, 2, 3] * 3, longest=2) is None
    assert loop_cut([1, 2, 3] * 3, longest=3) == 6
