"""The check of texts: what is a tie, what a fault, and that real faults are found on a real model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from decoding import target as target_file
from decoding.controller import Controller, FixedController
from decoding.drafters.base import Drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.kv_cache import TargetCache
from decoding.noise import NoiseStream
from decoding.sampling import Sampling, TokenChooser
from decoding.session import Session
from decoding.target import TargetModel
from evaluation import ties
from evaluation.text_check import RandomController, TextArm, TextReport, check_texts, examine, print_texts
from evaluation.ties import could_choose, half_range, measured_error, needed_error
from tests.fakes import OracleDrafter, tiny_eagle, tiny_target

CONTEXT = [3, 1]


class Fixed(NoiseStream):
    """Noise by hand: no noise at all for the ids that are not named."""

    def __init__(self, **values: float) -> None:
        super().__init__(0, CONTEXT)
        self._values = {int(name[1:]): value for name, value in values.items()}

    def gumbel(self, indices: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
        row = torch.tensor([self._values.get(int(token), 0.0) for token in ids_N], dtype=torch.float64)
        return row.expand(len(indices), -1)


def needed(logits: list[float], token: int, sampling: Sampling, noise: NoiseStream | None = None) -> float:
    chooser = TokenChooser(sampling, noise or Fixed())
    return needed_error(torch.tensor(logits, dtype=torch.float64), chooser, 0, CONTEXT, token, 10.0)


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-3)


def test_greedy_gap_is_halved() -> None:
    """Each logit may be off: one up, the other down."""
    assert needed([0.0, 1.0, 0.9], 2, Sampling()) == near(0.05)
    assert needed([0.0, 1.0, 0.9], 0, Sampling()) == near(0.5)
    assert needed([0.0, 1.0, 1.0], 2, Sampling()) == near(0.0)


def test_perturbed_gap_counts_at_its_temperature() -> None:
    """Token 2 is .9 behind in logits and .5 ahead in noise: at temperature .5 the gap is 1.8 - .5 = 1.3."""
    assert needed([0.0, 1.0, 0.1], 2, Sampling(0.5), Fixed(_2=0.5)) == near(1.3 * 0.5 / 2)
    # The noise may have put the other one first already: then the logits need not change.
    assert needed([0.0, 1.0, 0.1], 2, Sampling(1.0), Fixed(_2=2.0)) == near(0.0)


def test_border_of_top_k() -> None:
    """Token 2 wins by noise once it is in; it is third, .02 behind the second, and two are kept."""
    assert needed([3.0, 2.0, 1.98], 2, Sampling(1.0, top_k=2), Fixed(_2=9.0)) == near(0.01)
    # The other way round: the plain choice is the second and drops out.
    assert needed([3.0, 2.0, 1.98], 0, Sampling(1.0, top_k=2), Fixed(_1=9.0)) == near(0.01)


def test_border_of_min_p() -> None:
    assert needed([3.0, 1.0, 3.0 + math.log(0.1) - 0.02], 2, Sampling(1.0, min_p=0.1), Fixed(_2=9.0)) == near(
        0.01
    )


def test_border_of_top_p_moves_with_the_probabilities_that_it_sums() -> None:
    """Probabilities .5 and fifty of .01; the first of these is out, since .5 is more than .495. Raising it
    alone would take .35; errors of all that are summed take .005."""
    logits = [math.log(0.5), *[math.log(0.01)] * 50]
    assert needed(logits, 1, Sampling(1.0, top_p=0.495), Fixed(_1=9.0)) == near(math.log(0.5 / 0.495) / 2)


def test_a_repetition_penalty_is_part_of_the_law() -> None:
    """Logits 4 and 3: token 1 has been said, and at penalty 2 it counts 2; then 3 leads by 1."""
    assert needed([0.0, 4.0, 3.0], 1, Sampling(repetition_penalty=2.0)) == near(0.5)


def test_what_no_error_explains_is_infinite() -> None:
    assert needed([0.0, 99.0, 0.0], 0, Sampling()) == math.inf
    chooser = TokenChooser(Sampling(), Fixed())
    assert not could_choose(torch.tensor([0.0, 1.0]), chooser, 0, CONTEXT, 0, 0.49)
    assert could_choose(torch.tensor([0.0, 1.0]), chooser, 0, CONTEXT, 0, 0.51)


def test_what_all_logits_share_is_no_error() -> None:
    assert half_range(torch.tensor([5.0, 5.0, 5.0])) == 0
    assert half_range(torch.tensor([5.0, 4.0, 4.5])) == 0.5


small = partial(tiny_target, layers=2)
PROMPTS = {"a": (5, 9, 4, 9, 5, 9, 4), "b": (7, 7, 3), "c": (11, 3, 8, 3, 11)}


def opener(
    target: TargetModel,
    drafter: Drafter,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    seed: int = 0,
    tokens: int = 16,
) -> Callable[[str], Session]:
    def open_session(question: str) -> Session:
        return Session(
            target,
            drafter,
            PROMPTS[question],
            max_new_tokens=tokens,
            end_ids=(),
            sampling=sampling,
            seed=seed,
        )

    return open_session


def checked(
    target: TargetModel,
    *controllers: Controller,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    tokens: int = 16,
) -> TextReport:
    eagle = opener(target, tiny_eagle(target), sampling, tokens=tokens)
    arms = [TextArm(str(number), eagle, partial(_same, one)) for number, one in enumerate(controllers)]
    plain = opener(target, NgramDrafter(), sampling, tokens=tokens)
    return check_texts(target, plain, arms, list(PROMPTS))


def _same(controller: Controller) -> Controller:
    return controller


SETTINGS = (FixedController(1, 3), FixedController(4, 16))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.8)], ids=str)
def test_double_precision_has_neither_ties_nor_faults(sampling: Sampling) -> None:
    at_random = RandomController(5, 20, np.random.default_rng(0))
    report = checked(small(), *SETTINGS, at_random, sampling=sampling)
    assert report.divergences == {"0": [], "1": [], "2": []}
    assert report.measured_error < 1e-12


def test_half_precision_has_ties_and_no_faults() -> None:
    """A flat target in bf16: many near-equal logits, so that texts do part."""
    report = checked(small(5, dtype=torch.bfloat16), *SETTINGS, tokens=60)
    assert report.measured_error > 1e-4
    assert report.ties
    assert not report.faults
    for one in report.ties:
        assert one.plain_token != one.other_token
        assert one.needed_error <= one.measured_error


def test_two_rough_tokens_are_measured_on_their_own() -> None:
    """The measure over the first texts may be too small for a pair: then it is taken again, for these two."""
    target = small(5, dtype=torch.bfloat16)
    report = checked(target, *SETTINGS, tokens=60)
    tie = report.ties[0]
    plain = opener(target, NgramDrafter(), tokens=60)(tie.question_id)
    for _ in plain.run(FixedController(0, 1)):
        pass
    assert tie.other_token is not None
    other = [*plain.generated[: tie.position], tie.other_token, *plain.generated[tie.position + 1 :]]
    found = examine(target, plain, other, tie.needed_error / 2)
    assert found.kind == "tie"
    assert found.measured_error > tie.needed_error / 2


def _see_all_before(parents: list[int]) -> list[bytes]:
    return [row.tobytes() for row in np.tri(len(parents), dtype=bool)]


def test_a_mask_that_lets_siblings_see_each_other_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_file, "tree_attention_mask", _see_all_before)
    report = checked(small(dtype=torch.float32), *SETTINGS)
    assert report.faults
    assert all(one.needed_error > 10 * one.measured_error for one in report.faults)


def test_a_cache_that_keeps_the_wrong_rows_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = TargetCache.keep
    monkeypatch.setattr(
        TargetCache,
        "keep",
        lambda self, base, rows, device: keep(self, base, list(range(len(rows))), device),
    )
    assert checked(small(dtype=torch.bfloat16), *SETTINGS).faults


def test_a_text_that_ends_early_is_a_fault() -> None:
    """One that is a beginning of the other parts at no token: nothing to do with rounding."""
    target = small()
    plain = opener(target, NgramDrafter())("a")
    for _ in plain.run(FixedController(0, 1)):
        pass
    found = examine(target, plain, plain.generated[:5], 1.0)
    assert (found.position, found.other_token, found.kind) == (5, None, "fault")
    assert found.needed_error == math.inf


def test_the_position_is_the_first_that_differs() -> None:
    target = small()
    plain = opener(target, NgramDrafter())("a")
    for _ in plain.run(FixedController(0, 1)):
        pass
    other = list(plain.generated)
    other[7], other[9] = other[7] ^ 1, other[9] ^ 1
    found = examine(target, plain, other, 1e-9)
    assert (found.position, found.plain_token, found.other_token) == (7, plain.generated[7], other[7])


def test_measured_error_stops_when_enough_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small(dtype=torch.float32)
    sessions = [opener(target, NgramDrafter())(question) for question in PROMPTS]
    for session in sessions:
        for _ in session.run(FixedController(0, 1)):
            pass
    error, positions = measured_error(target, sessions)
    assert positions == 3 * 16
    assert 0 < error < 1e-4
    monkeypatch.setattr(ties, "MEASURED_TOKENS", 20)
    assert measured_error(target, sessions)[1] == 2 * 16


def test_random_controllers_draft_at_all_depths() -> None:
    target = small()
    session = opener(target, OracleDrafter([1] * 16))("a")
    records = list(session.run(RandomController(3, 5, np.random.default_rng(1))))
    assert {record.draft_depth for record in records} >= {0, 1, 2, 3}


def test_the_report_names_arms_faults_and_the_measured_error() -> None:
    target = small()
    plain = opener(target, NgramDrafter())
    lying = TextArm(
        "other seed", opener(target, NgramDrafter(), Sampling(2.0), 5), partial(FixedController, 2, 2)
    )
    report = check_texts(target, plain, [lying], ["a", "b"])
    assert len(report.faults) == 2
    out = StringIO()
    print_texts(report, Console(file=out, width=200))
    assert "FAULT: other seed, question a, generated token" in out.getvalue()
    assert "0 of 2 texts equal plain decoding's, 0 part at a tie, 2 at a fault" in out.getvalue()
    value = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert value["divergences"]["other seed"][0]["kind"] == "fault"
    with pytest.raises(ValueError, match="0 questions and 1 arms"):
        check_texts(target, plain, [lying], [])
