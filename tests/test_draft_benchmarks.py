"""The benchmarks of drafts count what sessions do; on tiny models they run and write what they say."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from fakes import VOCABULARY, plain_text, tiny_eagle, tiny_target

from benchmarks import draft_quality, drafts, temperature
from benchmarks.draft_quality import STEPS, agreement, draft_times, recorded
from benchmarks.prompts import (
    WORKLOAD,
    Counted,
    Estimate,
    encode,
    estimate,
    load_requests,
    measured,
    row_of,
    texts_of,
    tuning,
)
from decoding.controller import FixedController
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.eagle_head import EagleHead
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.metrics import acceptance_length, summarise
from decoding.models import LoadedModel, load_model
from decoding.noise import NoiseStream
from decoding.records import CycleRecord, PhaseSeconds
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from decoding.workload import Request, load_workload, split
from evaluation.protocol import Observation, cycle_row

TOKENS = 17
IDS = [5, 9, 31, 12, 5, 9, 31]  # a repetition that a lookup finds


@cache
def target_of(kind: str) -> TargetModel:
    return tiny_target(spread=1.5, layers=4 if kind == "eagle" else 2)


@cache
def drafter_of(kind: str) -> Drafter:
    """One that is right now and then."""
    target = target_of(kind)
    lookup = NgramDrafter(1, branches=2, vocabulary_size=VOCABULARY)
    if kind == "ngram":
        return lookup
    if kind == "eagle":
        return tiny_eagle(target)
    copy = tiny_target(spread=1.5, layers=2)
    weight = copy.model.lm_head.weight
    weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=weight.dtype)
    small = CausalLMDrafter(copy, target, beam_width=2)
    if kind == "merged":
        return MergedDrafter(small, lookup, lookup_depth=4)
    return CompositeDrafter(small, lookup) if kind == "composite" else small


@cache
def text_of(kind: str, warmth: float = 0.0) -> list[int]:
    return plain_text(target_of(kind), IDS, TOKENS, Sampling(warmth))


# --- replay and agreement ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["causal", "eagle", "ngram", "merged", "composite"])
@pytest.mark.parametrize("warmth", [0.0, 1.0])
def test_a_replayed_tau_is_the_live_sessions(kind: str, warmth: float) -> None:
    """Cycle by cycle, to the limit, which clips the last drafts, and to an end inside a draft."""
    target, drafter, taus = target_of(kind), drafter_of(kind), []
    given: dict[str, Any] = {"max_new_tokens": TOKENS, "sampling": Sampling(warmth), "seed": 0}
    for ends in ((), text_of(kind, warmth)[10:11]):
        text = plain_text(target, IDS, TOKENS, Sampling(warmth), end_ids=ends)
        traces = recorded(target, drafter, IDS, text, (1, 2, 5), warmth, NoiseStream(0, IDS))
        for depth, size in ((1, 2), (2, 100), (5, 4)):
            session = Session(target, drafter, IDS, end_ids=ends, **given)
            live = list(session.run(FixedController(depth, size)))
            replayed = list(traces[depth].cycles(TOKENS, size))
            assert [(len(IDS) + one.index, one.accepted, one.emitted) for one in replayed] == [
                (one.context_length, one.accepted, one.emitted) for one in live
            ]
            taus.append(acceptance_length(live))
            assert len(text) / len(replayed) == taus[-1]
    assert max(taus) > 1


def best_after(drafter: Drafter, target: TargetModel, committed: Sequence[int], chain: Sequence[int]) -> int:
    """The best token after a chain on a text, by a state that has seen nothing else; -1 for none."""
    features = None
    if drafter.fused_layers:
        features = target.forward(committed[:-1], target.new_cache()).features_RF
    state = drafter.start(NoiseStream(0, [1]), 0.0, len(committed))
    state.ingest(committed[:1], None)
    state.ingest(committed[1:], features)
    state.begin()
    for token in chain:
        if state.next_logits() is None:
            return -1
        state.append(token, -1.0)
    logits = state.next_logits()
    return -1 if logits is None else int(logits.argmax())


@pytest.mark.parametrize("kind", ["eagle", "ngram"])
def test_agreement_is_that_of_a_plain_loop(kind: str) -> None:
    """On a text that follows the drafter's own choice at two of three places."""
    target, drafter, tokens = target_of(kind), drafter_of(kind), list(IDS)
    target.capture(drafter.fused_layers)
    for place in range(12):
        best = best_after(drafter, target, tokens, [])
        tokens.append(best if place % 3 and best >= 0 else 12 + place)
    right, asked = agreement(target, drafter, IDS, tokens[len(IDS) :])
    for step in range(STEPS):
        ends = range(len(IDS) + step, len(tokens))
        parts = [(tokens[: end - step], tokens[end - step : end], tokens[end]) for end in ends]
        hits = [best_after(drafter, target, text, chain) == token for text, chain, token in parts]
        assert (right[step], asked[step]) == (sum(hits), len(hits))
    assert 0 < right[1] <= right[0] < asked[0]


def test_a_language_model_agrees_as_it_does_without_drafting() -> None:
    """Whatever the step: what it says after the text so far."""
    drafter, text = drafter_of("causal"), text_of("causal", 1.0)
    assert isinstance(drafter, CausalLMDrafter)
    tokens = [*IDS, *text]
    best = drafter.model.forward(tokens, drafter.model.new_cache()).logits_RV.argmax(dim=-1).tolist()
    hits = [best[place - 1] == tokens[place] for place in range(len(IDS), len(tokens))]
    assert 0 < sum(hits) < len(hits)
    right, _ = agreement(target_of("causal"), drafter, IDS, text)
    assert right == [sum(hits[step:]) for step in range(STEPS)]


def test_drafts_are_timed_a_cycle_apart_without_the_prompts() -> None:
    target, drafter, text = target_of("eagle"), drafter_of("eagle"), text_of("eagle")
    trace = recorded(target, drafter, IDS, text, [STEPS])[STEPS]
    cycles = len(list(trace.cycles(len(text), draft_quality.SIZE))) - 1
    times = draft_times(target, drafter, IDS, text, trace)
    assert [len(times[what]) for what in ("first", "level")] == [cycles, cycles * (STEPS - 1)]
    assert min(times["first"] + times["level"]) > 0


# --- prompts and numbers ----------------------------------------------------------------------------------


def test_every_category_gets_as_many_prompts_of_its_split() -> None:
    whole = load_requests(WORKLOAD)
    test = {one.question_id for one in split(load_workload(WORKLOAD))["test"]}
    chosen = measured(whole, "test", 3)
    assert {one.question_id for one in chosen} < test
    assert Counter(one.category for one in chosen) == dict.fromkeys({one.category for one in whole}, 3)
    least = min(Counter(one.category for one in whole if one.question_id in test).values())
    assert set(Counter(one.category for one in measured(whole, "test", None)).values()) == {least}
    assert {one.question_id for one in measured(whole, "test", 99)} == test
    assert len(measured(whole, "all", 99)) == len(whole)
    assert chosen == measured(whole[::-1], "test", 3)


def test_settings_are_chosen_on_other_questions_than_are_measured() -> None:
    whole = load_requests(WORKLOAD)
    validation = {one.question_id for one in split(load_workload(WORKLOAD))["validation"]}
    chosen = tuning(whole, "test", measured(whole, "test", None), 2)
    assert {one.question_id for one in chosen} < validation
    assert max(Counter(one.category for one in chosen).values()) == 2
    # Of a file that nothing was trained on: neither the same group nor the same words.
    taken = measured(whole, "all", 4)
    same = replace(taken[0], question_id="again", group="other", turns=(taken[0].turns[0].upper() + " ",))
    free = tuning([*whole, same], "all", taken, 99)
    assert not {one.group for one in taken} & {one.group for one in free}
    assert len(free) > 50
    assert same not in free
    with pytest.raises(ValueError, match="every request is measured"):
        tuning(whole, "all", whole, 1)
    with pytest.raises(ValueError, match="--per-category is 0"):
        measured(whole, "test", 0)


def test_languages_are_rows_of_their_own() -> None:
    rows = {"en": "c", None: "c", "de-en": "c", "it": "language: it", "pt-BR": "language: pt-BR"}
    assert {code: row_of(Request("1", ("x",), "c", code, "1")) for code in rows} == rows


def test_an_interval_is_over_groups_and_around_the_quotient_of_sums() -> None:
    rows = [
        Counted(f"q{n}", "chat", f"g{n}", {"above": 2 + n % 3, "below": 1 + n % 2, "none": 0})
        for n in range(12)
    ]
    one = estimate(rows, ["above"], ["below"])
    assert one.value == pytest.approx(36 / 18)
    assert 1.5 < (one.low or 0) < 2 < (one.high or 0) < 2.8
    assert str(one) == "2.00 (1.52..2.71)"
    # A text that is there ten times is no more evidence; a quotient that is always the same has no spread.
    again = [replace(row, question_id=f"{row.question_id} {n}") for n in range(9) for row in rows]
    assert estimate(again, ["above"], ["below"]) == one
    assert estimate(rows, ["above", "below"], ["below", "above"]) == Estimate(1.0, 1.0, 1.0)
    assert estimate(rows[:5], ["above"], ["below"]) == Estimate(14 / 7)
    assert str(estimate(rows, ["above"], ["none"])) == "-"


# --- loops ------------------------------------------------------------------------------------------------


def made(arm: str, question: str, cycles: list[list[int]], seconds: float) -> tuple[Observation, drafts.Raw]:
    """A text that came in these cycles, each of which took so long."""
    records = [
        CycleRecord(3, 4, (True,) * (len(ids) - 1), tuple(ids), 9, PhaseSeconds(verify=seconds))
        for ids in cycles
    ]
    text = str([token for ids in cycles for token in ids])
    one = Observation(arm, question, question, "chat", "en", 0, 0, 0, 0.1, summarise(records), text, 0.5)
    return one, [cycle_row(one, number, record) for number, record in enumerate(records)]


def test_only_cycles_that_begin_before_the_loop_count() -> None:
    """Of a text of 10 with 7, 8 three times and a half, the loop begins after 7 tokens; another has none."""
    parts = [
        made("plain", "a", [[token] for token in (1, 2, 3, 7, 8, 7, 8, 7, 8, 7)], 1.0),
        made("n-gram", "a", [[1], [2], [3, 7, 8], [7, 8], [7, 8, 7]], 2.0),
        made("plain", "b", [[1], [2], [3], [4]], 1.0),
        made("n-gram", "b", [[1, 2], [3, 5]], 1.0),
    ]
    observations, raw = [one for one, _ in parts], [row for _, rows in parts for row in rows[::-1]]
    kept = drafts.without_loops(observations, raw)
    found = [(one.cycles.cycles, one.emitted, one.seconds) for one in kept]
    assert found == [(7, 7, 7.0), (4, 7, 8.0), (4, 4, 4.0), (2, 4, 2.0)]
    assert [(one.arm, one.group) for one in kept] == [(one.arm, one.group) for one in observations]
    assert drafts.loops(raw, "all") == {"texts": 2, "looping texts": 1, "tokens": 14, "looped tokens": 3}
    assert drafts.loops(raw, "maths")["texts"] == 0
    tables, notes, data = drafts.result(observations, raw, ["n-gram"])
    # Geometric means over the two questions of tokens/s over plain decoding's 1.
    for what, first in (("with loops", 10 / 10), ("without loops", 7 / 8)):
        assert data["ratios"][what]["all"]["n-gram"]["value"] == pytest.approx((first * 2) ** 0.5)
    assert "| chat | 50% | 21% | 2.00 / 1.83 |" in tables[2]
    assert data["texts_differ"] == {"n-gram": 1}
    assert notes[1] == "n-gram: 1.41 with loops, 1.32 without: loops are 22% of its gain"
    _, notes, _ = drafts.result(observations, raw, ["plain", "n-gram"])
    assert notes[-1] == "n-gram over plain: 1.41"
    assert drafts.gain("x", 0.9, 0.8) == "x: 0.90 with loops, 0.80 without"


def test_each_arm_captures_what_its_drafter_reads_alone() -> None:
    head = tiny_eagle(tiny_target())
    model = LoadedModel("tiny", tiny_target(), lambda text: {"input_ids": [5, 6]}, frozenset())
    for drafter in (head, NgramDrafter(), head):
        drafts.open_session(model, 3, 0, drafter, Request("1", ("x",), None, None, "1"))
        assert model.target.fused_layers == drafter.fused_layers


# --- whole runs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flags(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tiny model and a workload of three questions, one of them in Italian."""
    path = tmp_path_factory.mktemp("workload") / "w.jsonl"
    said = {"1": ("en", "abcabcab"), "2": ("it", "Ciao."), "3": ("en", "xyxyxy?")}
    rows = [
        {"question_id": name, "turns": [text], "category": "chat", "language": language}
        for name, (language, text) in said.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    more = "--split all --per-category 1 --max-new-tokens 7 --threads 1 --dtype float32 --device cpu"
    return ["--target", str(folder), "--workload", str(path), *more.split()]


def written(out: Path, name: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    # Where output is no terminal, progress is plain lines: those that take a while show some.
    assert all(re.match(r"\w[\w ]*: \d+ of \d+", line) for line in capsys.readouterr().err.splitlines())
    text = (out / f"{name}.md").read_text(encoding="utf-8")
    result = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
    header = result["header"]
    assert {"machine", "threads", "dtype", "prompts", "seed", "load_before"} <= header.keys()
    assert header["prompts_by_category"]["chat"] == 1
    assert f"`{header['command']}`" in text
    return result, text


def test_two_drafters_stand_side_by_side_and_temperatures_in_one_table(
    flags: list[str], folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [*flags, "--out", str(tmp_path), "--drafter", str(head)]
    assert draft_quality.main([*more, "--drafter", "ngram"]) == 0
    result, text = written(tmp_path, "draft_quality", capsys)
    assert len(result["texts"]) == 2
    ids = set(EagleHead.load(head).target_ids_V.tolist())
    model = load_model(str(folder), "cpu", "float32")
    prompts = encode(model, [Request("1", ("abcabcab",), None, None, "1")])
    (ids_of_text,) = texts_of(model, prompts, 0.0, 0, 7)
    counts = next(row["counts"] for row in result["texts"] if row["question_id"] == "1")
    known = (counts[f"{head}: known"], counts["ngram: known"])
    assert known == (sum(token in ids for token in ids_of_text), len(ids_of_text))
    assert {f"ngram: right {STEPS}", f"{head}: cycles 8 x all nodes"} <= result["texts"][0]["counts"].keys()
    for row in ("| chat |", "| language: it |", "| all |", "tau over that of"):
        assert f"{row} {head}" in text
    assert temperature.main(more) == 0
    result, text = written(tmp_path, "temperature", capsys)
    assert {name: len(rows) for name, rows in result["texts"].items()} == {"0.6": 2, "1.0": 2}
    assert text.count("rejection over coupled") == 2


def test_drafts_measures_what_it_chose(
    flags: list[str], head: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "GRIDS", {kind: grid[:2] for kind, grid in drafts.GRIDS.items()})
    more = [*flags, "--head", str(head), "--out", str(tmp_path)]
    assert drafts.main(more) == 2
    assert capsys.readouterr().err.endswith("choice.json do not exist: run with --choose first\n")
    assert drafts.main([*more, "--choose"]) == 0
    chosen, _ = written(tmp_path, "choice", capsys)
    assert len(chosen["tokens_per_second"]) == 1 + 2 * len(drafts.GRIDS)
    for kind in drafts.GRIDS:
        one = chosen["settings"][kind]
        speeds = {name: speed for name, speed in chosen["tokens_per_second"].items() if name.startswith(kind)}
        assert speeds[f"{kind} {one['draft_depth']}x{one['verification_size']}"] == max(speeds.values())
    assert drafts.main(more) == 0
    result, text = written(tmp_path, "drafts", capsys)
    assert result["texts_differ"] == dict.fromkeys(drafts.GRIDS, 0)
    assert "Tokens/s over plain, without loops" in text
    cycles = pq.read_table(tmp_path / "cycles.parquet").to_pylist()
    assert {row["arm"] for row in cycles} == {"plain", *drafts.GRIDS}
    assert not {row["question_id"] for row in cycles} & set(chosen["questions"])
    assert drafts.main([*more, "--head", "ngram"]) == 2
    assert "were chosen for" in capsys.readouterr().err
    other = Request(chosen["questions"][0], ("x",), None, None, chosen["groups"][0])
    with pytest.raises(ValueError, match="which is measured too"):
        drafts.read_choice(tmp_path / "choice.json", str(head), [other])
