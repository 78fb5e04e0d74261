"""What a target is asked to write: a question of its own, or one begun for it, or one that quotes a passage
that it wrote a moment before; then the answer.

Openings are data of the caller: beginnings of user turns for the tasks that matter, so that the texts hold
passages, code and lists, and answers that copy from them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decoding.models import LoadedModel
from decoding.repetition import loop_cut
from decoding.text_rows import Ask, Draw, Script

_TURN_TOKENS = 48
_TURN_TOP_K = 50
_FEWEST_TOKENS = 8  # of a passage that is worth quoting, and of the room for an answer
_SLOT = "{passage}"
_MARKER = "draftpace"

# Shares of the texts; a model without a chat template writes free texts only.
_FREE, _BEGUN = 0.35, 0.4


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a user turn, which the target completes. With `then` the answer is a passage, and one
    of these turns, which hold `{passage}`, quotes it."""

    task: str
    begin: str
    then: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """A written text: token ids, the first `prompt_length` of them the prompt; `looped`: a loop was cut."""

    tokens: list[int]
    prompt_length: int
    kind: str
    temperature: float
    looped: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds a user turn: token ids before it, between it and the answer, and the ids that end each.

    Without a chat template `before` is the bos token and a "turn" is the text's beginning.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    turn_stops: frozenset[int]
    answer_stops: frozenset[int]
    chat: bool


def frame_of(model: LoadedModel) -> Frame:
    """Read off the chat template; ValueError if the model has neither a usable one nor a first token."""
    tokenizer = model.tokenizer
    special = frozenset(tokenizer.all_special_ids)
    if not getattr(tokenizer, "chat_template", None):
        first = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
        if first is None:
            raise ValueError(f"{model.name} has no chat template and no bos token to begin a text with")
        return Frame((first,), (), model.end_ids | special, model.end_ids, chat=False)
    try:
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARKER}], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template is a program of the model's author: it may raise anything
        raise ValueError(f"the chat template of {model.name} refuses a user turn: {error}") from None
    before, found, after = rendered.partition(_MARKER)
    ids = [tuple(encode(tokenizer, part)) for part in (before, after)]
    if not found or not ids[0]:
        raise ValueError(f"the chat template of {model.name} puts nothing before a user turn")
    return Frame(ids[0], ids[1], model.end_ids | special, model.end_ids, chat=True)


def read_openings(path: Path | None) -> list[Opening]:
    """JSONL, an object a line: `task`, `begin` and perhaps `then`, a list of texts with `{passage}` in them.

    No path, no openings. ValueError names file and line.
    """
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"openings {path} are not readable: {error}") from None
    openings = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            opening = Opening(record["task"], record["begin"], tuple(record.get("then", ())))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"openings {path}, line {number}: needs `task` and `begin` ({error})") from None
        texts = (opening.task, opening.begin, *opening.then)
        if not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"openings {path}, line {number}: all values must be texts that are not empty")
        if not all(_SLOT in text for text in opening.then):
            raise ValueError(f"openings {path}, line {number}: every text of `then` must hold {_SLOT}")
        openings.append(opening)
    return openings


class Planner:
    """Makes the script of a text, of one of three kinds, with one of `temperatures`, as the generator says.

    `max_length`: tokens of a whole text at most.
    """

    def __init__(
        self, model: LoadedModel, openings: Sequence[Opening], temperatures: Sequence[float], max_length: int
    ) -> None:
        self.frame = frame_of(model)
        self._tokenizer = model.tokenizer
        self._temperatures = list(temperatures)
        self._max_length = max_length
        self._room = max_length - len(self.frame.before) - len(self.frame.after)
        if self._room < 4 * _FEWEST_TOKENS:
            raise ValueError(
                f"max_length {max_length} leaves no room for a question and an answer beside the "
                f"{max_length - self._room} tokens of the chat template"
            )
        self._begun = [opening for opening in openings if self.frame.chat and not opening.then]
        self._quoting = [opening for opening in openings if self.frame.chat and opening.then]

    def script(self, rng: np.random.Generator) -> Script[Text]:
        """The program of one text. What is chosen here is chosen before anything is written."""
        temperature = self._temperatures[rng.integers(len(self._temperatures))]
        place = rng.random()
        if place < _FREE or not (self._begun or self._quoting):
            return self._asked("free", [], temperature)
        if (place < _FREE + _BEGUN and self._begun) or not self._quoting:
            opening = self._begun[rng.integers(len(self._begun))]
            return self._asked(opening.task, encode(self._tokenizer, opening.begin), temperature)
        opening = self._quoting[rng.integers(len(self._quoting))]
        return self._quoted(opening, opening.then[rng.integers(len(opening.then))], temperature)

    def _asked(
        self, kind: str, begin: list[int], temperature: float, longest: int | None = None
    ) -> Script[Text]:
        """The target ends the user turn, then answers, in at most `longest` tokens."""
        frame, room = self.frame, self._room - _FEWEST_TOKENS
        begin = begin[: room - _FEWEST_TOKENS]
        draw = Draw(1.0, _TURN_TOP_K, min(_TURN_TOKENS, room - len(begin)), frame.turn_stops)
        turn = yield Ask(begin, draw, fresh=True)
        prompt = [*frame.before, *begin, *turn.tokens, *frame.after]
        if not frame.chat and turn.stop is not None:
            return Text([*prompt, turn.stop], len(frame.before), kind, 1.0, looped=False)
        return (yield from self._answered(kind, prompt, list(frame.after), temperature, longest))

    def _quoted(self, opening: Opening, request: str, temperature: float) -> Script[Text]:
        """A passage first; then a new conversation whose user turn quotes it."""
        frame = self.frame
        begin = encode(self._tokenizer, opening.begin)
        first = yield from self._asked(opening.task, begin, temperature, longest=self._max_length // 3)
        passage = first.tokens[first.prompt_length :]
        if passage and passage[-1] in frame.answer_stops:
            passage.pop()
        around = [encode(self._tokenizer, part) for part in request.split(_SLOT, 1)]
        most = self._room - sum(map(len, around)) - self._max_length // 4
        if min(len(passage), most) < _FEWEST_TOKENS:
            return first
        turn = [*around[0], *passage[:most], *around[1]]
        prompt = [*frame.before, *turn, *frame.after]
        kind = f"{opening.task}, quoted"
        return (yield from self._answered(kind, prompt, [*turn, *frame.after], temperature, fresh=True))

    def _answered(
        self,
        kind: str,
        prompt: list[int],
        given: list[int],
        temperature: float,
        longest: int | None = None,
        fresh: bool = False,
    ) -> Script[Text]:
        """The answer to `prompt`, whose last tokens, `given`, the target has not seen yet."""
        limit = min(self._max_length - len(prompt), longest or self._max_length)
        answer = yield Ask(given, Draw(temperature, None, limit, self.frame.answer_stops), fresh)
        tokens = answer.tokens
        cut = None
        if answer.stop is None:
            cut = loop_cut(tokens)
            tokens = tokens[:cut]
        else:
            tokens = [*tokens, answer.stop]
        return Text([*prompt, *tokens], len(prompt), kind, temperature, cut is not None)


def encode(tokenizer: object, text: str) -> list[int]:
    """Token ids of a piece of a prompt, with nothing added."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
    return ids
