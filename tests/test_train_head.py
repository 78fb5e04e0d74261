"""Training an EAGLE head: the unroll is what drafting does, it learns, and stops when it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoding.controller import FixedController
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import EagleHead
from decoding.noise import NoiseStream
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.train_head import HeadTrainer
from tests.fakes import plain_text, tiny_head
from tests.head_world import (
    SETTINGS,
    fc_of,
    fresh_head,
    pretend,
    steps,
    target,
    texts,
    trainer,
    trainer_on_many,
)
from tests.reference_head import ReferenceHead


def test_unrolled_states_are_those_of_drafting() -> None:
    """Step s at pair j = the state after drafting the true tokens of the s pairs up to j."""
    training = trainer(head=tiny_head(target()).requires_grad_(True))
    batch = training._batch(training._texts, np.array([0, 7]))
    with torch.no_grad():
        unrolled = list(training._unroll(batch))
    assert len(unrolled) == SETTINGS.unroll_steps
    drafter = EagleDrafter(training.head, target().embeddings, target().device, torch.float32, beam_width=2)
    reference = ReferenceHead(training.head, target().embeddings)
    for row, length in enumerate(batch.lengths_B.tolist()):
        tokens = batch.tokens_BN[row, :length].tolist()
        features = batch.features_BNF[row, :length]
        for step, states in enumerate(unrolled):
            for pair in range(step, length, 2):
                known = pair - step + 1
                path = tokens[known : pair + 1]
                drafted = drafted_state(drafter, tokens[:known], features[:known], path)
                torch.testing.assert_close(states[row, pair], drafted, rtol=1e-3, atol=1e-4)
                expected = reference.states(tokens[:known], features[:known].double().numpy(), path)[-1]
                np.testing.assert_allclose(states[row, pair].numpy(), expected, rtol=1e-3, atol=1e-4)


def drafted_state(
    drafter: EagleDrafter, tokens: list[int], features: torch.Tensor, path: list[int]
) -> torch.Tensor:
    """The head's state after a chain of given tokens, by the drafter's own steps."""
    state = drafter.start(NoiseStream(0, [1]), 0.0, 1)
    state.ingest([1], None)
    state.ingest(tokens, features)
    state.begin()
    for level, token in enumerate(path):
        state.next_logits()
        state.append(token, -float(level))
    state.next_logits()
    assert state._rows is not None
    return state._rows.states_RH[0].clone()


def test_a_batch_holds_what_the_decoder_will_feed_the_head() -> None:
    """Pair i: token i + 1 with the feature of position i, and as label the target's law after token i + 1."""
    training = trainer()
    batch = training._batch(training._texts, np.array([1, 5]))
    for row, number in enumerate((1, 5)):
        text = training._texts[number].tolist()
        pairs = len(text) - 1
        output = target().forward(text, target().new_cache())
        assert output.features_RF is not None
        assert batch.lengths_B[row] == pairs
        assert batch.tokens_BN[row, :pairs].tolist() == text[1:]
        torch.testing.assert_close(
            batch.features_BNF[row, :pairs], output.features_RF[:-1], rtol=0.01, atol=0.01
        )
        laws = output.logits_RV[1:].softmax(-1)[:, training.head.target_ids_V]
        torch.testing.assert_close(training._labels(batch)[row, :pairs], laws, rtol=0.1, atol=0.02)


def test_training_lowers_the_loss_and_lengthens_accepted_drafts() -> None:
    """120 steps on the target's own texts: less loss, and more accepted of a greedy text; the text stays."""
    training = trainer(replace(SETTINGS, evaluate_every=120))
    before = accepted(training.head)
    progress = steps(training.run(), 120)
    losses = [one.loss for one in progress]
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    assert [one.step for one in progress] == list(range(1, 121))
    assert progress[-1].agreement is not None
    assert len(progress[-1].agreement) == SETTINGS.unroll_steps
    assert all(0 <= share <= 1 for share in progress[-1].agreement)
    assert all(one.agreement is None for one in progress[:-1])
    assert accepted(training.head) > before


def accepted(head: EagleHead) -> int:
    """Drafted tokens that the target agreed with, over three greedy texts."""
    copy = EagleHead(head.config)
    copy.load_state_dict(head.state_dict())
    drafter = EagleDrafter(copy, target().embeddings, target().device, torch.float32, beam_width=2)
    target().capture(drafter.fused_layers)
    total = 0
    for first in (12, 17, 25):
        session = Session(
            target(), drafter, [first, 7], max_new_tokens=12, end_ids=(), sampling=Sampling(), seed=0
        )
        total += sum(record.accepted for record in session.run(FixedController(3, 6)))
        assert session.generated == plain_text(target(), [first, 7], 12)
    return total


def test_an_epoch_meets_every_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainer_on_many()
    epochs = [training._epoch_batches(epoch) for epoch in range(3)]
    counts = [len(batches) for batches in epochs]
    assert len(set(counts)) > 1, "all epochs have as many batches: nothing is proven of those that differ"
    met: list[list[int]] = []

    def noted(numbers: np.ndarray, rate: float) -> float:
        met.append(numbers.tolist())
        return 1.0

    monkeypatch.setattr(training, "_train_step", noted)
    progress = steps(training.run(), sum(counts))
    assert met == [batch.tolist() for batches in epochs for batch in batches]
    for epoch in epochs:
        assert sorted(np.concatenate(epoch).tolist()) == list(range(80))
    assert [one.epoch for one in progress if one.epoch == int(one.epoch)] == [1.0, 2.0, 3.0]
    assert training.epochs == 3.0
    assert sum(one.tokens for one in progress) == 3 * training.training_tokens
    assert training.training_texts == 80


def test_the_run_ends_when_its_minutes_are_spent() -> None:
    """The last step is measured; the time of runs before a kill counts."""
    training = trainer(replace(SETTINGS, minutes=1e-9))
    (only,) = training.run()
    assert training.stopped == "minutes"
    assert only.step == 1
    assert only.agreement is not None
    assert list(training.run()) == []


@pytest.mark.parametrize("freeze", [True, False])
def test_output_rows_move_only_if_they_are_trained(freeze: bool) -> None:
    training = trainer(replace(SETTINGS, freeze_output=freeze))
    before = {name: parameter.clone() for name, parameter in training.head.named_parameters()}
    steps(training.run(), 3)
    stood = {name for name, now in training.head.named_parameters() if torch.equal(now, before[name])}
    assert stood == ({"lm_head.weight"} if freeze else set())


def test_training_stops_when_patience_is_lost_and_the_best_weights_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An equal measurement is no better one; a better one gives all the patience back."""
    training = trainer(replace(SETTINGS, evaluate_every=1, patience=3))
    pretend(monkeypatch, training, [0.3, 0.2, 0.1, 0.5, 0.5, 0.4, 0.4, 0.9])
    assert (training.best_agreement, training.stopped) == (None, None)
    progress = list(training.run())
    assert [one.step for one in progress] == list(range(1, 8))
    assert [one.agreement for one in progress][3] == training.best_agreement == (0.5, 0.1, 0.1)
    assert (training.best.step, training.best.since, training.stopped) == (4, 3, "early")
    assert fc_of(training.head) == 7
    assert list(training.run()) == []
    training.use_best()
    assert fc_of(training.head) == 4


def test_without_patience_only_the_minutes_end_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainer(replace(SETTINGS, evaluate_every=1))
    pretend(monkeypatch, training, [0.3] * 30)
    assert len(steps(training.run(), 30)) == 30
    assert training.stopped is None


def test_texts_shorter_than_the_unroll_train_too() -> None:
    """Four tokens are three pairs: the fourth draft step has none, which is no divergence."""
    short = [text[:4] for text in texts()]
    settings = replace(SETTINGS, unroll_steps=4)
    training = HeadTrainer(fresh_head(), target(), short, short[:2], settings)
    assert all(np.isfinite(one.loss) for one in steps(training.run(), 3))


def test_divergence_is_one_line() -> None:
    training = trainer()
    with torch.no_grad():
        training.head.fc.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="head training diverged at step 0: loss nan") as caught:
        next(training.run())
    assert "\n" not in str(caught.value)


def test_a_batch_of_texts_shorter_than_the_unroll_trains() -> None:
    settings = replace(SETTINGS, unroll_steps=8)
    short = [text[:4] for text in texts()]
    assert all(
        np.isfinite(one.loss)
        for one in steps(HeadTrainer(fresh_head(), target(), short, short[:2], settings).run(), 2)
    )
