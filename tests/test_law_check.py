"""The check of the law finds what is wrong with decoding, and nothing where nothing is."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from decoding import chain, sampling, session, verify
from decoding.chain import Drawn, draft_chain
from decoding.kv_cache import KVBuffer
from decoding.noise import NoiseStream
from decoding.sampling import Sampling, token_probs
from decoding.target import TargetModel
from evaluation import law_check
from evaluation.chi_square import cells, chi_square, detectable
from evaluation.law_check import (
    CASES,
    LAWS,
    LENGTH,
    LEVEL,
    Case,
    Law,
    LawReport,
    check_law,
)
from evaluation.law_controllers import CONTROLLERS
from evaluation.law_table import print_law
from evaluation.statistics import holm_adjusted
from evaluation.tiny_world import PROMPT, VOCABULARY, World, exact_law, tiny_world

ONE = Law(1.0)
LOOKUP = Case("rejection", "ngram", ONE)
COUPLED = Case("coupled", "ngram", ONE)
FEW = 170


def check(case: Case, controller: str = "fixed", samples: int = 250, seed: int = 0) -> LawReport:
    return check_law(samples, seed, cases=[case], controllers={controller: CONTROLLERS[controller]})


@cache
def world() -> World:
    return tiny_world()


@pytest.mark.parametrize("law", LAWS)
def test_the_exact_law_is_that_of_plain_decodings_own_forwards(law: Law) -> None:
    """Token by token through the cache and the distribution that decoding uses: other code, the same law."""
    target, settings = world().target, Sampling(law.temperature, top_k=law.top_k)
    exact_T = exact_law(target.model, PROMPT, LENGTH, law.temperature, law.top_k)
    assert exact_T.sum() == pytest.approx(1, abs=1e-12)
    assert exact_T.min() >= 0
    for text, exact in zip(product(range(VOCABULARY), repeat=LENGTH), exact_T, strict=True):
        probability, held = 1.0, target.new_cache()
        unread = list(PROMPT)
        for token in text:
            probs_V = token_probs(target.forward(unread, held).logits_RV[-1], settings, ())
            assert probs_V is not None
            probability *= float(probs_V[token])
            unread = [token]
        assert probability == pytest.approx(exact, abs=1e-12)


@torch.inference_mode()
def test_remembered_forwards_are_real_ones() -> None:
    """Also where the cache holds another path under the same tokens."""
    target = world().target
    branches: dict[str, Any] = {"parents": np.array([-1, 0, 0]), "depths": np.array([0, 1, 1])}
    for kept in ([0, 1], [0, 2]):
        outputs = []
        for forward in (target.forward, target.forward, partial(TargetModel.forward, target)):
            held = target.new_cache()
            forward(PROMPT[:-1], held)
            forward([PROMPT[-1], 1, 2], held, **branches)
            held.keep(len(PROMPT) - 1, kept, target.device)
            outputs.append(forward([3], held))
        for output in outputs[:2]:
            assert torch.equal(output.logits_RV, outputs[2].logits_RV)
            assert output.features_RF is not None
            assert outputs[2].features_RF is not None
            assert torch.equal(output.features_RF, outputs[2].features_RF)


def sane(report: LawReport) -> bool:
    """No fault, and drafts that are accepted at some times and rejected at others."""
    for row in report.rows:
        if row.temperature:
            assert 0.2 < row.acceptance_rate < 0.9
            assert 1 < row.tau < 4
        else:
            assert row.total_variation == 0
    return not report.faults


def test_sound_code_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the combinations of rule, drafter and law, controllers by turns; the slow test has all."""
    monkeypatch.setattr(law_check, "tiny_world", world)  # what one check computed, the next remembers
    names = list(CONTROLLERS)
    for number, case in enumerate(CASES):
        if (number + number // len(LAWS)) % 3 == 0:
            assert sane(check(case, names[number % len(names)], FEW))


@pytest.mark.slow
def test_the_whole_check_has_no_fault() -> None:
    calls: list[tuple[int, int, str]] = []
    report = check_law(FEW, on_progress=lambda *call: calls.append(call))
    assert sane(report)
    assert len(report.rows) == len(CASES) * (len(CONTROLLERS) + 1) == 144
    assert [done for done, _, _ in calls] == list(range(1, 121))
    seeds = [(row.first_seed, row.samples) for row in report.rows if row.first_seed is not None]
    assert all(first + samples <= after for (first, samples), (after, _) in pairwise(seeds))


def wrong_fallback(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verify, "_after_rejection", lambda target_V, draft_V: target_V)


def drop_a_drawn_token(patch: pytest.MonkeyPatch) -> None:
    """A plain step where the first drawn token is the fourth symbol."""

    def by_value(*parts: Any) -> Any:
        drawn = yield from draft_chain(*parts)
        return Drawn([], []) if drawn.tokens[:1] == [3] else drawn

    patch.setattr(session, "draft_chain", by_value)


def key_by_position(patch: pytest.MonkeyPatch) -> None:
    def key(self: NoiseStream, index: int) -> int:
        return int.from_bytes(hashlib.sha256(index.to_bytes(8, "little")).digest()[:8], "little", signed=True)

    patch.setattr(NoiseStream, "key", key)


def key_by_seed(patch: pytest.MonkeyPatch) -> None:
    """Every position meets the same noise."""
    key = NoiseStream.key
    patch.setattr(NoiseStream, "key", lambda self, index: key(self, 0))


def no_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        NoiseStream, "gumbel", lambda self, indices, ids_N: torch.zeros(len(indices), len(ids_N)).double()
    )


def draws_by_position(patch: pytest.MonkeyPatch) -> None:
    """A token and the decision on it use one number."""

    def twice(self: chain.SeededDraws) -> float:
        held: list[float] = self.__dict__.setdefault("held", [])
        if not held:
            held += [uniform(self)] * 2
        return held.pop()

    uniform = chain.SeededDraws._uniform
    patch.setattr(chain.SeededDraws, "_uniform", twice)


def without_settings(**changed: Any) -> Callable[[pytest.MonkeyPatch], None]:
    def ignore(patch: pytest.MonkeyPatch) -> None:
        scaled = sampling.scaled_logits
        patch.setattr(
            sampling,
            "scaled_logits",
            lambda logits_RV, settings: scaled(logits_RV, replace(settings, **changed)),
        )

    return ignore


def forget_the_past(patch: pytest.MonkeyPatch) -> None:
    """The cache loses three positions a cycle: that forwards are remembered must not hide it."""
    keep = KVBuffer.keep
    patch.setattr(
        KVBuffer, "keep", lambda self, base, rows_K, count: keep(self, max(0, base - 3), rows_K, count)
    )


def sample_at_temperature_0(patch: pytest.MonkeyPatch) -> None:
    def warm(logits_V: torch.Tensor, settings: Sampling, context: Any) -> torch.Tensor | None:
        return token_probs(logits_V, replace(settings, temperature=1.0), context)

    patch.setattr(session, "token_probs", warm)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Case, int]] = [
    (wrong_fallback, LOOKUP, 250),
    (wrong_fallback, Case("rejection", "causal", ONE), 250),
    (drop_a_drawn_token, Case("rejection", "causal", ONE), 300),
    (draws_by_position, LOOKUP, 250),
    (key_by_position, COUPLED, FEW),
    (key_by_position, LOOKUP, FEW),
    (key_by_seed, COUPLED, 250),
    (no_noise, COUPLED, FEW),
    (without_settings(temperature=1.0), Case("coupled", "ngram", Law(0.7)), 400),
    (without_settings(temperature=1.0), Case("rejection", "ngram", Law(0.7)), 400),
    (without_settings(top_k=None), Case("coupled", "ngram", Law(1.0, top_k=3)), FEW),
    (without_settings(top_k=None), Case("rejection", "ngram", Law(1.0, top_k=3)), FEW),
    (forget_the_past, Case("coupled", "ngram", Law(1.0, top_k=3)), FEW),
    (sample_at_temperature_0, Case("rejection", "ngram", Law(0.0)), FEW),
]


@pytest.mark.parametrize(("spoil", "case", "samples"), FAULTS)
def test_a_fault_is_found(
    spoil: Callable[[pytest.MonkeyPatch], None],
    case: Case,
    samples: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(monkeypatch)
    report = check(case, samples=samples)
    assert report.faults == list(report.rows)
    assert "2 of 2 rows do not follow the target's law" in printed(report)
    assert printed(report).count("FAULT: ") == 2


def test_equal_seeds_give_equal_reports() -> None:
    first = check(LOOKUP, samples=FEW, seed=3)
    assert first == check(LOOKUP, samples=FEW, seed=3)
    other = check(LOOKUP, samples=FEW, seed=4)
    assert other.rows[0].first_seed == 4 * 2**32
    assert other.rows[0].total_variation != first.rows[0].total_variation


def test_texts_of_all_controllers_are_counted_together() -> None:
    both = {name: CONTROLLERS[name] for name in ("fixed", "history")}
    one, two, pooled = check_law(FEW, cases=[LOOKUP], controllers=both).rows
    assert (one.controller, two.controller, pooled.controller) == ("fixed", "history", "all")
    assert two.first_seed == FEW
    assert pooled.first_seed is None
    assert pooled.samples == 2 * FEW
    assert pooled.degrees > one.degrees
    assert min(one.tau, two.tau) < pooled.tau < max(one.tau, two.tau)
    assert pooled.detectable is not None
    assert one.detectable is not None
    assert pooled.detectable < one.detectable == detectable(FEW, one.degrees, LEVEL / 3)


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        ([10, 20, 30], [{0}, {1}, {2}]),
        ([4, 20, 3, 30, 0], [{0, 2}, {1}, {3}]),  # 7 together; what cannot be is in no cell
        ([2, 20, 1, 6], [{0, 2, 3}, {1}]),  # 3 together: the rarest other joins
        ([5, 4.9], [{0, 1}]),
        ([0, 7], [{1}]),
    ],
)
def test_rare_texts_are_one_cell(expected: list[float], wanted: list[set[int]]) -> None:
    found = [set(cell.tolist()) for cell in cells(np.array(expected, dtype=float))]
    assert sorted(found, key=min) == wanted


def test_chi_square_by_hand() -> None:
    """Expected 20, 16 and (3 + 1 pooled with 0 unseen) 4 -> joined: cells 20 and 20."""
    seen_T, law_T = np.array([25, 10, 4, 1, 0]), np.array([0.5, 0.4, 0.075, 0.025, 0.0])
    chi2, degrees, p_value = chi_square(seen_T, law_T)
    assert chi2 == pytest.approx((25 - 20) ** 2 / 20 + (15 - 20) ** 2 / 20)
    assert degrees == 1
    assert p_value == pytest.approx(stats.chi2.sf(2.5, 1))
    assert chi_square(np.array([25, 10, 4, 0, 1]), law_T) == (None, 3, 0.0)
    assert chi_square(np.array([20, 0]), np.array([1.0, 0.0])) == (0.0, 0, 1.0)
    assert chi_square(np.array([19, 1]), np.array([1.0, 0.0])) == (None, 0, 0.0)


def test_holm_by_hand() -> None:
    """.01 x 4, .02 x 3, then .03 x 2 is not below what came before, .9 x 1."""
    assert holm_adjusted([0.02, 0.9, 0.01, 0.03]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm_adjusted([0.5, 0.6]) == [1.0, 1.0]
    assert holm_adjusted([0.0]) == [0.0]


def test_the_power_is_what_is_said() -> None:
    """A law that is uneven by as much as is said is found nine times in ten."""
    rng = np.random.default_rng(0)
    law_C = np.array([0.3, 0.2, 0.15, 0.15, 0.1, 0.1])
    samples = 400
    away = detectable(samples, len(law_C) - 1, LEVEL)
    other_C = law_C * (1 + 2 * away * np.array([-1, 1, -1, 1, 1, -1]))
    other_C += law_C * (1 - other_C.sum())
    assert np.abs(other_C - law_C).sum() / 2 == pytest.approx(away, rel=0.05)
    drawn = rng.multinomial(samples, other_C / other_C.sum(), size=2000)
    found = np.mean([chi_square(seen_C, law_C)[2] < LEVEL for seen_C in drawn])
    assert 0.87 < found < 0.96


def test_too_few_samples_and_seeds_out_of_range_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"samples is 10, must be >= \d+: with fewer some law leaves fewer than 5"
    ):
        check_law(10)
    for samples in (0, -1, 2.5, True, 10**9):
        with pytest.raises(ValueError, match=r"samples is .*, must be a whole number in 1"):
            check_law(samples)  # type: ignore[arg-type]
    for seed in (-1, 2**32, 0.5):
        with pytest.raises(ValueError, match=r"seed is .*, must be a whole number in 0"):
            check_law(FEW, seed)  # type: ignore[arg-type]


def printed(report: LawReport, width: int = 400) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_law(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_ends_in_one_sentence_and_json_is_plain() -> None:
    report = check(Case("coupled", "ngram", Law(1.0, top_k=3)), samples=FEW)
    text = printed(report)
    assert "T 1, k 3" in text
    assert max(map(len, printed(report, width=80).splitlines())) <= 80
    assert "…" not in printed(report, width=80)
    last = text.strip().splitlines()[-1]
    assert last.startswith("Exact text: all 2 rows follow the target's law (smallest p after Holm ")
    assert "is found by a controller's row with probability 90%" in last
    again = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (again["samples"], again["seed"], again["faults"], len(again["rows"])) == (FEW, 0, 0, 2)
    assert again["rows"][0]["p_value"] == report.rows[0].p_value
