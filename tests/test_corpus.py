"""Corpora to train a head on: what is read, how it is split, and bad files as one line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding.corpus import corpus_digest, corpus_files, corpus_name, load_corpus, split_held_out


class ByteTokenizer:
    """One token a byte; chat turns are joined by a zero."""

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        if not isinstance(text, str):
            raise ValueError("text input must be of type `str`")  # as transformers' tokenizers do
        return {"input_ids": list(text.encode())}

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> list[int]:
        return [byte for message in messages for byte in (*message["content"].encode(), 0)]


def load(path: Path | list[Path], vocabulary: int = 256, longest: int = 20) -> list[list[int]]:
    return [text.tolist() for text in load_corpus(path, ByteTokenizer(), vocabulary, longest)]


def archive(path: Path, texts: list[list[int]]) -> Path:
    offsets = np.cumsum([0, *map(len, texts)])
    np.savez(path, tokens=np.array([i for text in texts for i in text], dtype=np.int32), offsets=offsets)
    return path


def test_archive_and_lines_give_the_same_texts(tmp_path: Path) -> None:
    """Texts under 4 tokens are left out, long ones cut."""
    texts = ["abcd", "abc", "x" * 30, "perché"]
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n\n" for text in texts), encoding="utf-8")
    expected = [list(text.encode())[:20] for text in ("abcd", "x" * 30, "perché")]
    assert load(lines) == expected
    assert load(archive(tmp_path / "texts.npz", [list(text.encode()) for text in texts])) == expected


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": [{"content": "hi"}, {"content": "yo"}]}))
    assert load(path) == [[104, 105, 0, 121, 111, 0]]


def test_line_separators_inside_a_string_end_no_line(tmp_path: Path) -> None:
    """U+2028 and U+0085 may stand unescaped in JSON."""
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"text": "ab\u2028cd\x85"}, ensure_ascii=False), encoding="utf-8")
    assert load(path) == [list("ab\u2028cd\x85".encode())]


@pytest.mark.parametrize(
    "line",
    ['{"text": "abc', "{}", "3", "[1]", '"text"', '{"text": 5}', '{"messages": 5}', '{"messages": [{}]}'],
)
def test_an_unreadable_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "abcdef"}\n\n' + line + "\n")
    with pytest.raises(
        ValueError, match=r"corpus .*texts.jsonl, line 3: needs `text` or `messages`"
    ) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def bad_archive(path: Path, kind: str) -> None:
    if kind == "truncated":
        archive(path, [[1] * 400])
        path.write_bytes(path.read_bytes()[:-60])
    elif kind == "damaged":
        np.savez_compressed(path, tokens=np.arange(4000) % 91, offsets=np.array([0, 4000]))
        data = bytearray(path.read_bytes())
        data[200:260] = b"\x55" * 60
        path.write_bytes(data)
    elif kind == "one array":
        with path.open("wb") as file:
            np.save(file, np.arange(5))
    elif kind == "other names":
        np.savez(path, text=np.arange(5))
    elif kind == "objects":
        np.savez(path, tokens=np.array([{}], dtype=object), offsets=np.array([0, 1]))
    else:
        path.write_text(kind)


@pytest.mark.parametrize(
    "kind", ["truncated", "damaged", "one array", "other names", "objects", "no archive", ""]
)
def test_a_bad_archive_is_one_line(tmp_path: Path, kind: str) -> None:
    bad_archive(tmp_path / "texts.npz", kind)
    with pytest.raises(
        ValueError, match=r"corpus .*texts.npz is not an archive of `tokens` and `offsets`"
    ) as caught:
        load(tmp_path / "texts.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("offsets", [[0], [1, 5], [0, 6], [0, 4, 2, 5]])
def test_offsets_must_rise_over_all_tokens(tmp_path: Path, offsets: list[int]) -> None:
    np.savez(tmp_path / "texts.npz", tokens=np.arange(5), offsets=np.array(offsets))
    with pytest.raises(ValueError, match="`offsets` do not rise from 0 to the 5 tokens"):
        load(tmp_path / "texts.npz")


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    for name, message in (
        ("a.npz", "does not exist"),
        ("a.jsonl", "does not exist"),
        ("a.txt", r"must end in .npz or .jsonl, not '.txt'"),
        ("a", "not 'nothing'"),
    ):
        with pytest.raises(ValueError, match=message):
            load(tmp_path / name)
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match="not readable text"):
        load(tmp_path / "bytes.jsonl")
    with pytest.raises(ValueError, match=r"text 1 has ids outside 0\.\.49: another model's tokenizer"):
        load(archive(tmp_path / "ids.npz", [[1] * 5, [50] * 5]), vocabulary=50)
    with pytest.raises(ValueError, match="holds no text of at least 4 tokens"):
        load(archive(tmp_path / "short.npz", [[1], [2]]))


def test_a_folder_stands_for_its_archives_by_name(tmp_path: Path) -> None:
    """Other files are passed over: a record of how the texts were made lies among them."""
    for name in ("b", "a", "c"):
        archive(tmp_path / f"{name}.npz", [[ord(name)] * 4, [9] * 30])
    (tmp_path / "texts.json").write_text("{}")
    assert corpus_files(tmp_path) == [tmp_path / f"{name}.npz" for name in "abc"]
    assert load(tmp_path) == [text for name in b"abc" for text in ([name] * 4, [9] * 20)]
    (tmp_path / "empty.npz").mkdir()
    with pytest.raises(ValueError, match=r"corpus folder .*empty.npz holds no .npz file"):
        load(tmp_path / "empty.npz")


def test_several_corpora_are_read_in_their_order(tmp_path: Path) -> None:
    """Archives, lines and folders together; one without a usable text is no mistake, all without are."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"text": "abcd"}))
    (tmp_path / "folder").mkdir()
    archive(tmp_path / "folder" / "x.npz", [[1] * 4])
    short = archive(tmp_path / "short.npz", [[7]])
    sources = [lines, short, tmp_path / "folder", lines]
    assert load(sources) == [list(b"abcd"), [1] * 4, list(b"abcd")]
    with pytest.raises(ValueError, match=r"corpus .*short.npz, .*short.npz holds no text of at least 4"):
        load([short, short])
    archive(tmp_path / "folder" / "y.npz", [[1] * 4, [300] * 4])
    with pytest.raises(ValueError, match=r"corpus .*y.npz: text 1 has ids outside"):
        load(sources)
    assert corpus_name(sources) == "lines.jsonl, short.npz, folder, lines.jsonl"
    assert corpus_name(lines) == "lines.jsonl"
    assert corpus_name(None) == "written by the target itself"


def test_a_digest_tells_corpora_apart(tmp_path: Path) -> None:
    """One file's is that of its bytes, which older checkpoints hold; a folder's is that of its files."""
    one, two = archive(tmp_path / "1.npz", [[1] * 4]), archive(tmp_path / "2.npz", [[2] * 4])
    assert corpus_digest(one) == corpus_digest([one]) == hashlib.sha256(one.read_bytes()).hexdigest()
    assert corpus_digest(tmp_path) == corpus_digest([one, two])
    assert len({corpus_digest(source) for source in (one, two, [one, two], [two, one], [one, one])}) == 5
    before = corpus_digest(tmp_path)
    archive(two, [[3] * 4])
    assert corpus_digest(tmp_path) != before


def test_copies_of_a_prompt_stay_on_one_side() -> None:
    """About the share asked for; texts that begin alike are never parted; the same at every call."""
    rng = np.random.default_rng(0)
    beginnings = [rng.integers(0, 99, 50) for _ in range(300)]
    texts = [np.concatenate([start, rng.integers(0, 99, 50)]) for start in beginnings for _ in range(2)]
    training, held = split_held_out(texts, 0.2)
    assert len(training) + len(held) == 600
    assert 60 <= len(held) <= 180
    assert not {text[:48].tobytes() for text in held} & {text[:48].tobytes() for text in training}
    again = split_held_out(texts, 0.2)[1]
    assert all(np.array_equal(one, other) for one, other in zip(held, again, strict=True))
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="leave one side empty"):
            split_held_out(texts, share)
