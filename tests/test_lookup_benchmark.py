"""The lookup benchmark runs and prints what it says; no timing is asserted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import lookup
from decoding.drafters.ngram import NgramState
from decoding.tree import DraftTree


def test_it_measures_every_length_and_prints_both_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lookup, "LENGTHS", (64, 300))
    assert lookup.main(["--rounds", "4"]) == 0
    printed = capsys.readouterr()
    assert "a cycle: 3 tokens taken, begin, 6 levels, us" in " ".join(printed.out.split())
    assert "a plain step: 1 token taken, begin, us" in printed.out
    assert printed.out.count(" 64 ") == printed.out.count(" 300 ") == 2
    samples = lookup.run((64,), 3)
    assert set(samples) == {"cycle", "step"}
    assert all(len(one["64"]) == 3 and min(one["64"]) > 0 for one in samples.values())


def test_texts_stay_near_their_length_and_every_measured_cycle_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[int] = []
    trees: list[DraftTree] = []
    begin = NgramState.begin

    def watched(state: NgramState) -> DraftTree:
        tree = begin(state)
        lengths.append(len(state._index))
        trees.append(tree)
        return tree

    monkeypatch.setattr(NgramState, "begin", watched)
    measure = lookup._cycle(160, 3, 6)
    for _ in range(30):
        assert measure() > 0
        assert trees[-1].depth == 6
    assert 160 < min(lengths) <= max(lengths) <= 170


def test_the_text_repeats_itself_and_follows_its_generator() -> None:
    first, again = (lookup.repetitive_text(5000, np.random.default_rng(3)) for _ in range(2))
    assert first == again != lookup.repetitive_text(5000, np.random.default_rng(4))
    assert len(first) == 5000
    assert 0 <= min(first) <= max(first) < lookup.VOCABULARY
    fours = [tuple(first[start : start + 4]) for start in range(4996)]
    assert 0.2 < 1 - len(set(fours)) / len(fours) < 0.8


def test_too_few_rounds_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert lookup.main(["--rounds", "2"]) == 2
    assert capsys.readouterr().err == "error: --rounds is 2, must be >= 3\n"
