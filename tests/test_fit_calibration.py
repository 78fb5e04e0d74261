"""Fitting a calibration: known parameters come back, samples are those that a live draft meets, bad scores
become honest ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import train
from decoding.calibration import Calibration
from decoding.controller import RootChoice
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import Continuation, NgramDrafter
from decoding.fit_calibration import Proposed, Samples, fit, fit_logistic, fit_scale, lookup_table, observe
from decoding.noise import NoiseStream
from decoding.sampling import Sampling
from decoding.scoring import LOOKUP_INPUTS, LevelScale, lookup_inputs
from decoding.traces import OnPath, Position, record_text
from evaluation.reliability import node_predictions, reliability
from tests.fakes import plain_text, save_tiny_head, save_tiny_model, tiny_eagle, tiny_target

PROMPT = [5, 9, 7, 5, 9, 7, 5]


def save_prompts(path: Path) -> None:
    lines = [json.dumps({"question_id": str(n), "turns": [f"question {n}"]}) for n in range(40)]
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(("kappa", "a"), [(0.4, 0.9), (1.0, 1.0), (2.5, 0.6)])
def test_the_scale_that_made_the_texts_comes_back(kappa: float, a: float) -> None:
    rng = np.random.default_rng(0)
    z_NV = rng.normal(0, 3, (6000, 12))
    weights_NV = np.exp(z_NV / kappa)
    drawn = [rng.choice(12, p=row / row.sum()) for row in weights_NV]
    columns = np.where(rng.random(6000) < a, drawn, -1)
    rows = [
        OnPath(1, torch.from_numpy(z).float().log_softmax(-1), int(column))
        for z, column in zip(z_NV, columns, strict=True)
    ]
    found = fit_scale(rows)
    assert found.kappa == pytest.approx(kappa, rel=0.05)
    assert found.a == pytest.approx(a, abs=0.02)


def test_the_scale_maximises_the_likelihood() -> None:
    """Against a plain scan over kappa."""
    rng = np.random.default_rng(1)
    rows = [OnPath(2, torch.from_numpy(rng.normal(0, 2, 9)).float(), int(rng.integers(9))) for _ in range(40)]

    def likelihood(kappa: float) -> float:
        return sum(float((row.survival_V / kappa).log_softmax(-1)[row.column]) for row in rows)

    found = fit_scale(rows).kappa
    assert likelihood(found) >= max(likelihood(kappa) for kappa in np.geomspace(0.06, 19, 400)) - 1e-3


def test_tokens_outside_the_vocabulary_count_as_one_minus_a() -> None:
    row = torch.zeros(4).log_softmax(-1)
    outside = [OnPath(1, row, -1)] * 30
    assert fit_scale(outside) == LevelScale(1.0, 0.5 / 31)
    assert fit_scale([*outside, *[OnPath(1, row, 2)] * 30]).a == pytest.approx(0.5)


def test_the_logistic_function_that_made_the_hits_comes_back() -> None:
    rng = np.random.default_rng(2)
    true_K = np.array([-1.0, 0.7, 1.5, -0.5, 0.3, 0.4, 0.2, 1.0, 0.5])
    inputs_NK = rng.normal(0, 1, (20_000, len(LOOKUP_INPUTS)))
    hits_N = (rng.random(20_000) < 1 / (1 + np.exp(-inputs_NK @ true_K))).astype(float)
    np.testing.assert_allclose(fit_logistic(inputs_NK, hits_N), true_K, atol=0.1)
    inputs_NK[:, 5] = 0  # never varies: its weight stays 0
    assert fit_logistic(inputs_NK, hits_N)[5] == 0


def test_proposals_count_alone_and_with_the_heads_calibrated_opinion() -> None:
    row = OnPath(2, torch.tensor([0.0, 2.0, 1.0]).log_softmax(-1), 2)
    one = Continuation(token=8, depth=2, match_length=4, share=0.5, weight=4)
    proposed = [
        Proposed(one, 0.3, True, row, 1),
        Proposed(one, 0.1, False, None, -1),
        Proposed(one, 0, False, row, -1),
    ]
    inputs, hits = lookup_table(proposed, [LevelScale(1.0, 1.0), LevelScale(2.0, 0.8)])
    log_c = float((row.survival_V / 2).log_softmax(-1)[1]) + math.log(0.8)
    logit = log_c - math.log(1 - math.exp(log_c))
    assert hits.tolist() == [1, 1, 0, 0, 0]
    np.testing.assert_array_equal(inputs[0], lookup_inputs(one, None, 0.3))
    np.testing.assert_allclose(inputs[1], [1, 2, 0.5, 0.5, 0, 0.3, 1, 1, logit], rtol=1e-6)
    assert inputs[4][6:].tolist() == [1, 0, -6]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_are_all_that_is_proposed_after_a_prefix_that_the_text_followed(temperature: float) -> None:
    """Against a lookup that is built anew at every position."""
    target = tiny_target(spread=3.0)
    head, lookup = tiny_eagle(target), NgramDrafter(1)
    noise = NoiseStream(3, PROMPT)
    text = plain_text(target, PROMPT, 14, Sampling(temperature), seed=3)
    settings: dict[str, Any] = {
        "draft_depth": 3,
        "temperature": temperature,
        "noise": noise,
        "keep_rows": True,
    }
    recorded = list(record_text(target, head, PROMPT, text, **settings))
    samples = Samples()
    columns = {token: column for column, token in enumerate(head.target_ids_V.tolist())}
    observe(samples, recorded, lookup, [*PROMPT, *text], temperature, noise, columns)
    assert samples.positions == 14
    assert samples.rows == [row for one in recorded for row in one.on_path]
    expected = []
    for index, position in enumerate(recorded):
        state = lookup.start(noise, temperature, len(PROMPT))
        state.ingest([*PROMPT, *text[:index]], None)
        known = text[index : index + position.tree.height]
        for depth in range(1, len(known) + 1):
            for one in state.continuations(known[: depth - 1]):
                gumbel = float(noise.gumbel([index + depth - 1], torch.tensor([one.token]))[0, 0])
                row = next((row for row in position.on_path if row.depth == depth), None)
                hit = one.token == known[depth - 1]
                column = columns.get(one.token, -1)
                expected.append(Proposed(one, gumbel if temperature else 0.0, hit, row, column))
    assert samples.proposed == expected
    assert any(one.hit for one in expected)
    assert any(one.row is not None for one in expected)


def test_too_few_rows_of_a_level_leave_it_to_the_one_above() -> None:
    row = torch.randn(5, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    rows = [OnPath(1, row, 1)] * 60 + [OnPath(2, row, 1)] * 3
    found = fit(Samples(rows=rows, positions=60), 0.5)
    assert len(found.levels) == 1
    assert (found.temperature, found.positions, found.lookup) == (0.5, 60, ())
    with pytest.raises(ValueError, match=r"nothing was recorded at temperature 0\.5"):
        fit(Samples(), 0.5)


def test_a_calibration_makes_scores_honest(tmp_path: Path) -> None:
    """A random head is sure of nothing and wrong: after the fit its promises match what happens."""
    target = tiny_target(spread=3.0)
    head, lookup = tiny_eagle(target), NgramDrafter(1)
    merged = MergedDrafter(head, lookup, 4)
    prompts = [[first, 7, first, 7, first] for first in range(3, 19)]
    texts = [plain_text(target, prompt, 12) for prompt in prompts]
    columns = {token: column for column, token in enumerate(head.target_ids_V.tolist())}

    def look() -> float:
        found: list[Position] = []
        for prompt, text in zip(prompts, texts, strict=True):
            found += record_text(
                target, merged, prompt, text, draft_depth=3, temperature=0.0, noise=NoiseStream(0, prompt)
            )
        return reliability(*node_predictions(found)).log_loss

    samples = Samples()
    for prompt, text in zip(prompts, texts, strict=True):
        noise = NoiseStream(0, prompt)
        recorded = record_text(
            target, head, prompt, text, draft_depth=3, temperature=0.0, noise=noise, keep_rows=True
        )
        observe(samples, recorded, lookup, [*prompt, *text], 0.0, noise, columns)
    before = look()
    merged.calibration = Calibration((fit(samples, 0.0),), {"target": "t", "drafter": "d"})
    assert look() < 0.8 * before
    assert RootChoice.ALL in merged.start(NoiseStream(0, PROMPT), 0.0, 1).root_choices


def test_calibrate_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path / "model")
    save_tiny_head(tmp_path / "head", tmp_path / "model")
    save_prompts(tmp_path / "prompts.jsonl")
    values = {
        "seed": 1,
        "threads": 1,
        "model.target": tmp_path / "model",
        "model.drafter": f"merged:{tmp_path / 'head'}",
        "workload.files": f"[{tmp_path / 'prompts.jsonl'}]",
        "calibration.prompts": 6,
        "calibration.validation_prompts": 2,
        "calibration.max_new_tokens": 8,
        "calibration.draft_depth": 3,
        "calibration.temperatures": "[0.0,1.0]",
    }
    flags = [*(f"--set={key}={value}" for key, value in values.items()), "--out", str(tmp_path / "head")]
    assert train.main(["calibrate", *flags]) == 0
    assert "what path scores promise, and what came of it" in capsys.readouterr().out
    written = Calibration.load(tmp_path / "head")
    assert written is not None
    assert [fit.temperature for fit in written.fits] == [0.0, 1.0]
    assert len(json.loads((tmp_path / "head" / "reliability.json").read_text(encoding="utf-8"))["looks"]) == 4
    # Again, on what is calibrated now: the same fit, since recordings are uncalibrated.
    assert train.main(["calibrate", *flags]) == 0
    assert Calibration.load(tmp_path / "head") == written
    capsys.readouterr()
    assert train.main(["calibrate", *flags, "--set=calibration.temperatures=[1.0,0.5]"]) == 2
    assert "temperatures must be strictly increasing, e.g. [0.5, 1.0]" in capsys.readouterr().err


def test_a_calibration_that_does_not_fit_is_replaced_and_never_put_beside_another_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path / "model")
    for name, seed in (("head", 1), ("other", 2)):
        save_tiny_head(tmp_path / name, tmp_path / "model", seed)
    save_prompts(tmp_path / "prompts.jsonl")
    values = {
        "seed": 1,
        "threads": 1,
        "model.target": tmp_path / "model",
        "model.drafter": tmp_path / "head",
        "workload.files": f"[{tmp_path / 'prompts.jsonl'}]",
        "calibration.prompts": 2,
        "calibration.validation_prompts": 1,
        "calibration.max_new_tokens": 4,
        "calibration.temperatures": "[0.0]",
    }
    flags = [f"--set={key}={value}" for key, value in values.items()]
    (tmp_path / "head" / "calibration.json").write_text("{", encoding="utf-8")
    assert train.main(["calibrate", *flags, "--out", str(tmp_path / "head")]) == 0
    assert Calibration.load(tmp_path / "head") is not None
    capsys.readouterr()
    assert train.main(["calibrate", *flags, "--out", str(tmp_path / "other")]) == 2
    assert "name that head's folder, or an empty one" in capsys.readouterr().err
    assert not (tmp_path / "other" / "calibration.json").exists()
    assert train.main(["calibrate", *flags, "--set=model.drafter=ngram", "--out", str(tmp_path / "new")]) == 2
    assert "drafter ngram has no head" in capsys.readouterr().err
    penalty = "--set=sampling.repetition_penalty=1.2"
    assert train.main(["calibrate", *flags, penalty, "--out", str(tmp_path / "head")]) == 2
    assert "Traceback" not in capsys.readouterr().err
