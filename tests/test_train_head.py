"""Training an EAGLE head: the unroll is what drafting does, it learns, and a killed run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.controller import FixedController
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import EagleConfig, EagleHead
from decoding.noise import NoiseStream
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from decoding.train_head import (
    HeadProgress,
    HeadSettings,
    HeadTrainer,
    frequent_vocabulary,
    initialise_from_target,
)
from tests.fakes import VOCABULARY, plain_text, tiny_head, tiny_target
from tests.reference_head import ReferenceHead

# So many minutes that the learning rate stands still: steps then do not depend on the clock.
SETTINGS = HeadSettings(minutes=1e9, unroll_steps=3, batch_tokens=64, learning_rate=3e-3, evaluate_every=1000)


@cache
def target() -> TargetModel:
    return tiny_target(seed=6, dtype=torch.float32, layers=2)


@cache
def texts() -> list[np.ndarray]:
    """What the target writes by itself, greedily, after 24 beginnings: of several lengths."""
    return [np.array([first, 7, *plain_text(target(), [first, 7], 8 + first % 9)]) for first in range(10, 34)]


@cache
def many_texts() -> list[np.ndarray]:
    """More than are sorted into batches at once: epochs then differ in their number of batches."""
    rng = np.random.default_rng(0)
    return [rng.integers(10, VOCABULARY, rng.integers(4, 16)) for _ in range(80)]


def fresh_head() -> EagleHead:
    head = tiny_head(target(), draft_vocab_size=VOCABULARY)
    initialise_from_target(head, target())
    return head.requires_grad_(True)


def trainer(settings: HeadSettings = SETTINGS, head: EagleHead | None = None) -> HeadTrainer:
    return HeadTrainer(head or fresh_head(), target(), texts()[4:], texts()[:4], settings)


def trainer_on_many() -> HeadTrainer:
    settings = replace(SETTINGS, batch_tokens=48)
    return HeadTrainer(fresh_head(), target(), many_texts(), texts()[:1], settings)


def steps(run: Iterator[HeadProgress], count: int) -> list[HeadProgress]:
    return list(islice(run, count))


def weights(of: HeadTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.head.parameters()])


def test_unrolled_states_are_those_of_drafting() -> None:
    """Step s at pair j = the state after drafting the true tokens of the s pairs up to j."""
    training = trainer(head=tiny_head(target()).requires_grad_(True))
    batch = training._batch(training._texts, np.array([0, 7]), keep=False)
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
    return state._states_RH[0].clone()


def test_a_batch_holds_what_the_decoder_will_feed_the_head() -> None:
    """Pair i: token i + 1 with the feature of position i, and as label the target's law after token i + 1."""
    training = trainer()
    batch = training._batch(training._texts, np.array([1, 5]), keep=True)
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


@pytest.mark.parametrize("killed_after", [7, 37])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, killed_after: int) -> None:
    """Also across epochs of unequal numbers of batches: weights equal an uninterrupted run's."""
    whole, first, second = trainer_on_many(), trainer_on_many(), trainer_on_many()
    expected = steps(whole.run(), 42)
    assert not first.load_checkpoint(tmp_path)
    steps(first.run(), killed_after)
    first.save_checkpoint(tmp_path)
    assert second.load_checkpoint(tmp_path)
    assert torch.equal(weights(second), weights(first))
    assert (second.step, second.elapsed) == (killed_after, first.elapsed)
    rest = steps(second.run(), 42 - killed_after)
    assert [one.step for one in rest] == list(range(killed_after + 1, 43))
    assert [one.epoch for one in rest] == [one.epoch for one in expected[killed_after:]]
    np.testing.assert_allclose(
        [one.loss for one in rest], [one.loss for one in expected[killed_after:]], rtol=1e-3
    )
    torch.testing.assert_close(weights(second), weights(whole), rtol=1e-3, atol=1e-4)


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


def test_only_one_checkpoint_is_kept(tmp_path: Path) -> None:
    training = trainer()
    run = training.run()
    for _ in range(3):
        next(run)
        training.save_checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3.safetensors", "checkpoint.json"]


def test_a_checkpoint_of_other_settings_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """More minutes may be asked for; anything else is another run."""
    training = trainer()
    next(training.run())
    training.save_checkpoint(tmp_path)
    assert trainer(replace(SETTINGS, minutes=5.0)).load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="was trained with other learning_rate, seed; choose another --out"):
        trainer(replace(SETTINGS, learning_rate=1.0, seed=3)).load_checkpoint(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"head checkpoint .* is damaged or truncated"):
        trainer().load_checkpoint(tmp_path)


def test_the_run_ends_when_its_minutes_are_spent() -> None:
    """The last step is measured; the time of runs before a kill counts."""
    training = trainer(replace(SETTINGS, minutes=1e-9))
    (only,) = training.run()
    assert only.step == 1
    assert only.agreement is not None
    assert list(training.run()) == []


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


def test_frequent_vocabulary() -> None:
    """The most frequent and those always wanted, ascending; ties to the lower id."""
    counted = [np.array([5, 5, 5, 2, 2, 8, 7])]
    assert frequent_vocabulary(counted, 4, 10, always=[9]).tolist() == [2, 5, 7, 9]
    assert frequent_vocabulary(counted, 10, 10, always=[]).tolist() == list(range(10))
    for size in (0, 11):
        with pytest.raises(ValueError, match=rf"draft vocabulary of {size} is outside 1\.\.10"):
            frequent_vocabulary(counted, size, 10, always=[9])


def test_a_fresh_head_starts_as_the_targets_last_layer() -> None:
    head = fresh_head()
    last = target().model.model.layers[-1]
    assert torch.equal(head.midlayer.mlp.up_proj.weight, last.mlp.up_proj.weight)
    assert torch.equal(head.midlayer.self_attn.k_proj.weight[:, 32:], last.self_attn.k_proj.weight)
    assert torch.equal(head.lm_head.weight, target().model.lm_head.weight[head.target_ids_V])
    features = torch.randn(2, 96)
    torch.testing.assert_close(head.fc(features), features[:, 64:])
    assert EagleConfig.from_target(target(), 8).target_fingerprint == target().fingerprint()
