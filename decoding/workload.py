"""Workloads: requests read from JSONL, split by hash so that no question is both trained on and tested."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "validation", "test"]

# Upper ends of the shares of the hash's range: 30 % train, 15 % validation, 55 % test.
_SPLIT_ENDS: tuple[tuple[Split, float], ...] = (("train", 0.30), ("validation", 0.45), ("test", 1.0))
SPLITS: tuple[Split, ...] = tuple(name for name, _ in _SPLIT_ENDS)

# Changing it moves requests between training and test. Chosen before any result existed: the first number
# that leaves no split of the shipped prompts without one of their categories or languages.
_SPLIT_SALT = "draftpace split 2: "

_TWO_LETTERS = re.compile(r"[a-z]{2}-(?=.)")


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a workload.

    Attributes:
        question_id: unique in its workload.
        turns: what the user says, turn by turn; at least one, none of them blank.
        category, language: None where the file does not say.
        group: requests of one group are the same question (translations of it); they share a split, and count
            as one unit in statistics.
    """

    question_id: str
    turns: tuple[str, ...]
    category: str | None
    language: str | None
    group: str


def load_workload(paths: Iterable[Path]) -> list[Request]:
    """Read JSONL files, one request a line: `question_id`, `turns`; optional `category`, `language`, `group`.

    Other keys are ignored and blank lines skipped. `question_id` may be a whole number; `group` defaults to
    `question_id` without a language prefix ("it-82" -> "82"): the request's own language, or any two letters
    where no language is given. ValueError is one line: the file, its line number if any, what is wrong.
    """
    requests: dict[str, Request] = {}
    for path in paths:
        before = len(requests)
        for number, line in enumerate(_lines(path), start=1):
            if not line.strip():
                continue
            request = _parse(line, f"workload {path}, line {number}")
            if request.question_id in requests:
                again = f"question_id {request.question_id!r} occurs a second time"
                raise ValueError(f"workload {path}, line {number}: {again}")
            requests[request.question_id] = request
        if len(requests) == before:
            raise ValueError(f"workload {path} holds no request: it needs one JSON object a line")
    return list(requests.values())


def split(requests: Sequence[Request]) -> dict[Split, list[Request]]:
    """Train, validation and test: 30, 15 and 55 % of the groups, by SHA-256 of the group, in the given order.

    The same on every machine. Groups that share a first turn (but for case and spacing) are joined and follow
    the alphabetically first of them. Split the whole workload, then filter: what is filtered out still joins
    groups. A split can be empty; `select` refuses that.
    """
    leader = _leaders(requests)
    parts: dict[Split, list[Request]] = {name: [] for name in SPLITS}
    for request in requests:
        place = _hash(_SPLIT_SALT + leader[request.group]) / 2**64
        parts[next(name for name, end in _SPLIT_ENDS if place < end)].append(request)
    return parts


def select(
    requests: Sequence[Request],
    part: Split,
    limit: int | None = None,
    categories: Collection[str] | None = None,
    languages: Collection[str] | None = None,
) -> list[Request]:
    """Requests of one split of `requests` (the whole workload), never none of them.

    Args:
        part: train, validation or test.
        limit: at most so many, an equal number of every category as far as there are (the mixed workload):
            category by category in turn, in a fixed random order. None = all, in the given order.
        categories, languages: only these; None = all. ValueError names one that no request has.
    """
    if part not in SPLITS:
        raise ValueError(f"unknown split {part!r}: use {', '.join(SPLITS)}")
    if limit is not None and limit < 1:
        raise ValueError(f"a limit of {limit} prompts leaves nothing: use at least 1, or none")
    _check_known("category", categories, {request.category for request in requests})
    _check_known("language", languages, {request.language for request in requests})
    chosen = [
        request
        for request in split(requests)[part]
        if (categories is None or request.category in categories)
        and (languages is None or request.language in languages)
    ]
    if not chosen:
        filters = [*(categories or ()), *(languages or ())]
        asked = f" for {', '.join(filters)}" if filters else ""
        raise ValueError(
            f"the {part} split of {len(requests)} requests is empty{asked}: give more, or filter less"
        )
    return chosen if limit is None else _round_robin(chosen)[:limit]


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"workload {path} does not exist") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"workload {path}, line {line}: not UTF-8 ({error.reason})") from None
    except OSError as error:
        raise ValueError(f"workload {path} cannot be read: {error.strerror}") from None
    # Not splitlines(): that also breaks at separators such as U+2028, which JSON allows inside a string.
    return text.split("\n")


def _parse(line: str, where: str) -> Request:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not a JSON object ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a {type(row).__name__}, not a JSON object with question_id and turns")
    for name in ("question_id", "turns"):
        if name not in row:
            raise ValueError(f"{where}: {name} is missing")
    question_id = row["question_id"]
    if isinstance(question_id, int) and not isinstance(question_id, bool):
        question_id = str(question_id)
    question_id = _text(question_id, "question_id", where)
    category, language, group = (
        None if row.get(name) is None else _text(row[name], name, where)
        for name in ("category", "language", "group")
    )
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"{where}: turns must be a list of at least one text")
    texts = tuple(_text(turn, f"turn {number}", where) for number, turn in enumerate(turns, start=1))
    return Request(question_id, texts, category, language, group or default_group(question_id, language))


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {name} is a {type(value).__name__}, must be a text")
    if not value.strip():
        raise ValueError(f"{where}: {name} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{where}: {name} holds half of a surrogate pair, which is no text") from None
    return value


def default_group(question_id: str, language: str | None) -> str:
    """The question behind a `question_id`: without its language's prefix."""
    if language is None:
        # Joining two questions by mistake only makes a split coarser; parting two translations leaks.
        return _TWO_LETTERS.sub("", question_id, count=1) if _TWO_LETTERS.match(question_id) else question_id
    return question_id.removeprefix(f"{language}-") or question_id


def _leaders(requests: Iterable[Request]) -> dict[str, str]:
    """Each group's leader: the alphabetically first of the groups it is joined with by equal first turns."""
    parent: dict[str, str] = {}

    def find(group: str) -> str:
        parent.setdefault(group, group)
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    seen: dict[str, str] = {}
    for request in requests:
        first_turn = " ".join(request.turns[0].casefold().split())
        low, high = sorted((find(request.group), find(seen.setdefault(first_turn, request.group))))
        parent[high] = low
    return {group: find(group) for group in list(parent)}


def _hash(text: str) -> int:
    """64 bits, the same on every machine (Python's own hash is not)."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def _round_robin(requests: Iterable[Request]) -> list[Request]:
    # By hash, not in file order: files are sorted by language or difficulty, and the first are no sample. And
    # one request of every group before a second one: groups, not requests, are what statistics count.
    seen: Counter[str] = Counter()
    ranked = []
    for request in sorted(requests, key=lambda request: _hash(request.question_id)):
        ranked.append((seen[request.group], request))
        seen[request.group] += 1
    by_category: Counter[str] = Counter()
    rounds = []
    for _, request in sorted(ranked, key=lambda entry: entry[0]):
        category = request.category or ""
        rounds.append((by_category[category], category, request))
        by_category[category] += 1
    return [request for _, _, request in sorted(rounds, key=lambda entry: entry[:2])]


def _check_known(what: str, wanted: Collection[str] | None, known: set[str | None]) -> None:
    missing = sorted(set(wanted or ()) - {name for name in known if name is not None})
    if missing:
        names = ", ".join(sorted(name for name in known if name is not None)) or "none is named"
        raise ValueError(f"no request has the {what} {missing[0]!r}; the workload has: {names}")
