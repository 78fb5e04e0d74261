"""The benchmarks of drafts count what sessions do; on tiny models they run and write what they say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from benchmarks import draft_quality, drafts, temperature
from benchmarks.draft_quality import STEPS, agreement, draft_times, recorded
from benchmarks.prompts import WORKLOAD, Counted, Estimate, estimate, load_requests, measured, table, tuning
from decoding.controller import FixedController
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.metrics import acceptance_length, summarise
from decoding.models import LoadedModel
from decoding.noise import NoiseStream
from decoding.records import CycleRecord, PhaseSeconds
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from decoding.workload import Request, load_workload, split
from evaluation.protocol import Observation, cycle_row
from fakes import VOCABULARY, plain_text, tiny_eagle, tiny_target

TOKENS = 22
PROMPTS = [[5, 9, 31, 12, 5, 9, 31], [30, 4]]
KINDS = ("causal", "eagle", "ngram", "merged", "composite")


@cache
def target_of(kind: str) -> TargetModel:
    return tiny_target(spread=1.5)


@cache
def drafter_of(kind: str) -> Drafter:
    """One that is right now and then."""
    target = target_of(kind)
    lookup = NgramDrafter(1, branches=2, vocabulary_size=VOCABULARY)
    if kind == "ngram":
        return lookup
    if kind == "eagle":
        return tiny_eagle(target)
    copy = tiny_target(spread=1.5)
    noise = torch.Generator().manual_seed(0)
    copy.model.lm_head.weight.add_(
        0.15 * torch.randn(copy.model.lm_head.weight.shape, generator=noise, dtype=torch.float64)
    )
    small = CausalLMDrafter(copy, target, beam_width=2)
    if kind == "merged":
        return MergedDrafter(small, lookup, lookup_depth=4)
    return CompositeDrafter(small, lookup) if kind == "composite" else small


@cache
def text_of(kind: str, prompt: int, temperature: float = 0.0) -> list[int]:
    return plain_text(target_of(kind), PROMPTS[prompt], TOKENS, Sampling(temperature))


# --- replay and agreement ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature_", [0.0, 1.0])
def test_a_replayed_tau_is_the_live_sessions(kind: str, temperature_: float) -> None:
    """Cycle by cycle, at every depth and a few sizes; the last cycles are clipped to the tokens left."""
    target, drafter = target_of(kind), drafter_of(kind)
    taus = set()
    for prompt, ids in enumerate(PROMPTS):
        text = text_of(kind, prompt, temperature_)
        noise = NoiseStream(0, ids)
        traces = recorded(target, drafter, ids, text, (1, 2, 5), temperature_, noise)
        assert set(traces) == {1, 2, 5}
        for depth, trace in traces.items():
            for size in (1, 4, 100):
                session = Session(
                    target,
                    drafter,
                    ids,
                    max_new_tokens=TOKENS,
                    end_ids=(),
                    sampling=Sampling(temperature_),
                    seed=0,
                )
                live = list(session.run(FixedController(depth, size)))
                assert session.generated == text
                replayed = list(trace.cycles(TOKENS, size))
                assert [(one.accepted, one.emitted) for one in replayed] == [
                    (one.accepted, one.emitted) for one in live
                ]
                assert len(text) / len(replayed) == acceptance_length(live)
                taus.add(acceptance_length(live))
    assert len(taus) > 2


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
    target, drafter, found = target_of(kind), drafter_of(kind), []
    for prompt, ids in enumerate(PROMPTS):
        tokens = [*ids, *text_of(kind, prompt)]
        right, asked = agreement(target, drafter, ids, text_of(kind, prompt))
        for step in range(STEPS):
            places = range(len(ids), len(tokens) - step)
            hits = [
                best_after(drafter, target, tokens[:place], tokens[place : place + step])
                == tokens[place + step]
                for place in places
            ]
            assert (right[step], asked[step]) == (sum(hits), len(places) if places else 0)
        found += right
    assert 0 < sum(found)


def test_a_language_model_agrees_as_it_does_without_drafting() -> None:
    """Whatever the step: what it says after the text so far."""
    drafter = drafter_of("causal")
    assert isinstance(drafter, CausalLMDrafter)
    ids, text = PROMPTS[0], text_of("causal", 0)
    tokens = [*ids, *text]
    best = drafter.model.forward(tokens, drafter.model.new_cache()).logits_RV.argmax(dim=-1).tolist()
    hits = [best[place - 1] == tokens[place] for place in range(len(ids), len(tokens))]
    assert 0 < sum(hits) < len(hits)
    right, asked = agreement(target_of("causal"), drafter, ids, text)
    assert asked == [TOKENS - step for step in range(STEPS)]
    assert right == [sum(hits[step:]) for step in range(STEPS)]


def test_drafts_are_timed_a_cycle_apart_without_the_prompts() -> None:
    target, drafter = target_of("eagle"), drafter_of("eagle")
    text = text_of("eagle", 0)
    trace = recorded(target, drafter, PROMPTS[0], text, [STEPS])[STEPS]
    cycles = len(list(trace.cycles(len(text), draft_quality.SIZE)))
    times = draft_times(target, drafter, PROMPTS[0], text, trace)
    assert len(times["first"]) == cycles - 1
    assert len(times["level"]) == (cycles - 1) * (STEPS - 1)
    assert min(times["first"] + times["level"]) > 0


# --- temperature ------------------------------------------------------------------------------------------


def test_silence_is_no_noise_for_any_subset() -> None:
    ids = torch.tensor([3, 7, 9])
    assert temperature.Silence().gumbel([0, 4], ids).tolist() == [[0.0] * 3] * 2
    assert temperature.Silence().gumbel([2], ids).dtype == NoiseStream(0, [1]).gumbel([2], ids).dtype


def test_a_copy_of_the_target_is_always_right_with_the_noise_and_only_with_it() -> None:
    """And `rejection` keeps all that it draws. Without the noise the best candidate is the law's mode."""
    target = tiny_target(spread=0.5)
    drafter = CausalLMDrafter(tiny_target(spread=0.5), target, beam_width=4)
    ids, noise = PROMPTS[0], NoiseStream(0, PROMPTS[0])
    text = plain_text(target, ids, TOKENS, Sampling(1.0))
    counts = temperature.count_coupled(target, drafter, ids, text, TOKENS, 1.0, noise)
    assert counts["positions"] == counts["coupled: first"] == counts["coupled: one of four"] == TOKENS
    assert counts["coupled: accepted 16"] == TOKENS - counts["coupled: cycles 16"]
    logits = target.forward([*ids, *text], target.new_cache()).logits_RV[len(ids) - 1 : -1]
    ranks = logits.argsort(dim=-1, descending=True).tolist()
    modes = [rank.index(token) for rank, token in zip(ranks, text, strict=True)]
    assert counts["without the noise: first"] == sum(rank < 1 for rank in modes)
    assert counts["without the noise: one of four"] == sum(rank < 4 for rank in modes) < TOKENS
    assert counts["without the noise: accepted 16"] < counts["coupled: accepted 16"]
    model = LoadedModel("tiny", target, None, frozenset())
    drawn = temperature.count_rejection(SpeculativeDecoder(model, drafter), ids, TOKENS, 1.0, 0)
    assert drawn["rejection: kept 4"] == drawn["rejection: drafted 4"] > 0
    # Four and a bonus token a cycle, the last two left: one drafted.
    assert (drawn["rejection: cycles 4"], drawn["rejection: accepted 4"]) == (5, 17)


# --- prompts and numbers ----------------------------------------------------------------------------------


def test_every_category_gets_as_many_prompts_of_its_split() -> None:
    whole = load_requests(WORKLOAD)
    assert {one.category for one in whole if one.question_id.startswith(("it-", "zh-"))} == {
        "language: it",
        "language: zh",
    }
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
    same = replace(whole[0], question_id="again", group="other")
    taken = measured([*whole, same], "all", 4)
    free = tuning([*whole, same], "all", taken, 99)
    assert not {one.group for one in taken} & {one.group for one in free}
    assert not {one.turns[0] for one in taken} & {one.turns[0] for one in free}
    assert free
    with pytest.raises(ValueError, match="every request is measured"):
        tuning(whole, "all", whole, 1)
    with pytest.raises(ValueError, match="--per-category is 0"):
        measured(whole, "test", 0)


@pytest.mark.parametrize(
    ("language", "row"),
    [("en", "c"), (None, "c"), ("de-en", "c"), ("it", "language: it"), ("pt-BR", "language: pt-BR")],
)
def test_languages_are_rows_of_their_own(language: str | None, row: str, tmp_path: Path) -> None:
    line = {"question_id": "1", "turns": ["x"], "category": "c", "language": language}
    (tmp_path / "w.jsonl").write_text(json.dumps(line), encoding="utf-8")
    assert [one.category for one in load_requests([tmp_path / "w.jsonl"])] == [row]


def counted(group: int, above: float, below: float) -> Counted:
    return Counted(f"q{group}", "chat", f"g{group}", {"above": above, "below": below})


def test_an_interval_is_over_groups_and_around_the_quotient_of_sums() -> None:
    rows = [counted(group, 2 + group % 3, 1 + group % 2) for group in range(12)]
    one = estimate(rows, ["above"], ["below"])
    assert one.value == pytest.approx(36 / 18)
    assert one.low is not None
    assert one.high is not None
    assert one.low < 2 < one.high
    assert str(one) == f"2.00 ({one.low:.2f}..{one.high:.2f})"
    # A text that is there ten times is no more evidence; a quotient that is always the same has no spread.
    assert estimate(rows * 10, ["above"], ["below"]) == one
    assert estimate(rows, ["above", "below"], ["below", "above"]) == Estimate(1.0, 1.0, 1.0)
    assert estimate(rows[:5], ["above"], ["below"]) == Estimate(15 / 7)
    assert str(estimate([counted(1, 1, 0)], ["above"], ["below"])) == "-"


def test_a_table_is_markdown() -> None:
    assert table("T", ["a", "b"], [["x|y", "1"]]) == "**T**\n\n| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


# --- loops ------------------------------------------------------------------------------------------------


def made(arm: str, question: str, cycles: list[list[int]], seconds: float) -> tuple[Observation, drafts.Raw]:
    """A text that came in these cycles, each of which took so long."""
    records = [
        CycleRecord(3, 4, (True,) * (len(tokens) - 1), tuple(tokens), 9, PhaseSeconds(verify=seconds))
        for tokens in cycles
    ]
    text = [token for tokens in cycles for token in tokens]
    one = Observation(arm, question, question, "chat", "en", 0, 0, 0, 0.1, summarise(records), str(text), 0.5)
    return one, [cycle_row(one, number, record) for number, record in enumerate(records)]


def test_only_cycles_that_begin_before_the_loop_count() -> None:
    """One text of 10 with 7, 8 three times and a half, which begins after 7 tokens; one text without a loop."""
    looping, other = [1, 2, 3, 7, 8, 7, 8, 7, 8, 7], [1, 2, 3, 4]
    parts = [
        made("plain", "a", [[token] for token in looping], 1.0),
        made("n-gram", "a", [[1], [2], [3, 7, 8], [7, 8, 7], [8, 7]], 2.0),
        made("plain", "b", [[token] for token in other], 1.0),
        made("n-gram", "b", [[1, 2], [3, 4]], 2.0),
    ]
    observations, raw = [one for one, _ in parts], [row for _, rows in parts for row in rows[::-1]]
    kept = drafts.without_loops(observations, raw)
    assert [(one.cycles.cycles, one.emitted, one.seconds) for one in kept] == [
        (7, 7, 7.0),
        (4, 8, 8.0),
        (4, 4, 4.0),
        (2, 4, 4.0),
    ]
    assert [(one.arm, one.question_id) for one in kept] == [
        (one.arm, one.question_id) for one in observations
    ]
    assert drafts.loops(raw, "all") == {"texts": 2, "looping texts": 1, "tokens": 14, "looped tokens": 3}
    assert drafts.loops(raw, "maths")["texts"] == 0
    tables, notes, data = drafts.result(observations, raw, ["n-gram"])
    assert data["texts_differ"] == {"n-gram": 0}
    # 1 token/s over 1; (7 tokens in 7 s against 8 in 8 s) and (4 in 4 s against 4 in 4 s).
    assert data["ratios"]["without loops"]["all"]["n-gram"] == {"value": 1.0, "low": None, "high": None}
    assert "| chat | 50% | 21% | 2.00 / 2.00 |" in tables[2]
    assert notes[0].endswith("n-gram 0")


def test_a_share_of_a_gain_is_what_is_lost_without_loops() -> None:
    assert drafts.gain("x", 1.5, 1.2) == "x: 1.50 with loops, 1.20 without: loops are 60% of its gain"
    assert drafts.gain("x", 0.9, 0.8) == "x: 0.90 with loops, 0.80 without"


def test_texts_that_differ_are_counted_by_arm() -> None:
    pairs = [("plain", "a", [[1]]), ("x", "a", [[1]]), ("plain", "b", [[2]]), ("x", "b", [[3]])]
    rows = [made(arm, question, cycles, 1.0)[0] for arm, question, cycles in pairs]
    assert drafts.differing(rows, ["x"]) == {"x": 1}


# --- whole runs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flags(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tiny model and a workload of three questions, one of them in Italian."""
    path = tmp_path_factory.mktemp("workload") / "w.jsonl"
    rows: list[dict[str, Any]] = [
        {"question_id": "1", "turns": ["abcabcab"], "category": "chat", "language": "en"},
        {"question_id": "2", "turns": ["Ciao."], "category": "chat", "language": "it"},
        {"question_id": "3", "turns": ["xyxyxy?"], "category": "chat", "language": "en"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [
        *("--target", str(folder), "--workload", str(path), "--split", "all", "--per-category", "1"),
        *("--max-new-tokens", "7", "--threads", "1", "--dtype", "float32", "--device", "cpu"),
    ]


def written(out: Path, name: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    said = capsys.readouterr()
    assert not said.err
    text = (out / f"{name}.md").read_text(encoding="utf-8")
    result = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
    head = result["header"]
    assert {"machine", "threads", "dtype", "prompts", "command", "seed", "load_before"} <= head.keys()
    assert head["prompts_by_category"]["chat"] == 1
    assert f"`{head['command']}`" in text
    return result, text


def test_draft_quality_puts_drafters_side_by_side(
    flags: list[str], head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--drafter", "ngram", "--drafter", str(head), "--out", str(tmp_path)]
    assert draft_quality.main([*flags, *more]) == 0
    result, text = written(tmp_path, "draft_quality", capsys)
    assert len(result["texts"]) == 2
    assert {f"ngram: right {STEPS}", f"{head}: cycles 8 x all nodes"} <= result["texts"][0]["counts"].keys()
    for row in ("| chat | ngram |", "| language: it | ngram |", "| all | ngram |"):
        assert row in text
    assert "tau over that of ngram" in text


def test_temperature_writes_one_table(
    flags: list[str], head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert temperature.main([*flags, "--drafter", str(head), "--out", str(tmp_path)]) == 0
    result, text = written(tmp_path, "temperature", capsys)
    assert {name: len(rows) for name, rows in result["texts"].items()} == {"0.6": 2, "1.0": 2}
    assert text.count("rejection over coupled") == 2


def test_drafts_measures_what_it_chose(
    flags: list[str],
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafts, "GRIDS", {kind: grid[:2] for kind, grid in drafts.GRIDS.items()})
    more = [*flags, "--head", str(head), "--out", str(tmp_path)]
    assert drafts.main(more) == 2
    assert capsys.readouterr().err.endswith("choice.json does not exist\n")
    assert drafts.main([*more, "--choose"]) == 0
    chosen, _ = written(tmp_path, "choice", capsys)
    assert set(chosen["settings"]) == set(drafts.GRIDS)
    assert len(chosen["tokens_per_second"]) == 1 + 2 * len(drafts.GRIDS)
    for kind, one in chosen["settings"].items():
        speeds = {name: speed for name, speed in chosen["tokens_per_second"].items() if name.startswith(kind)}
        best = max(speeds, key=lambda name: speeds[name])
        assert best == f"{kind} {one['draft_depth']}x{one['verification_size']}"
    assert drafts.main(more) == 0
    result, text = written(tmp_path, "drafts", capsys)
    assert result["texts_differ"] == dict.fromkeys(drafts.GRIDS, 0)
    assert "Tokens/s over plain, without loops" in text
    cycles = pq.read_table(tmp_path / "cycles.parquet").to_pylist()
    assert {row["arm"] for row in cycles} == {"plain", *drafts.GRIDS}
    questions = {row["question_id"] for row in cycles}
    assert not questions & set(chosen["questions"])
    assert drafts.main([*more, "--head", "ngram"]) == 2
    assert "were chosen for" in capsys.readouterr().err
    other = Request(chosen["questions"][0], ("x",), None, None, chosen["groups"][0])
    with pytest.raises(ValueError, match="which is measured too"):
        drafts.read_choice(tmp_path / "choice.json", str(head), [other])


def test_each_arm_captures_what_its_drafter_reads_alone() -> None:
    target = tiny_target()
    head = tiny_eagle(target)
    assert isinstance(head, EagleDrafter)
    model = LoadedModel("tiny", target, lambda text: {"input_ids": [5, 6]}, frozenset())
    request = Request("1", ("x",), None, None, "1")
    for drafter in (head, NgramDrafter(), head):
        drafts.open_session(model, 3, 0, drafter, request)
        assert target.fused_layers == drafter.fused_layers
