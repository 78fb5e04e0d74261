"""Train an EAGLE-3 head on the target's own distributions, with training-time test.

Training-time test (arXiv 2503.01840, section 3): the head is unrolled over several draft steps in training,
each step reading the states that the previous step made, so that it meets in training what it meets when
drafting.

Legend: B texts, N pairs of a text (token i + 1, state of position i), H hidden size, F = 3H, A attention
heads, G key/value heads, D head size, V draft vocabulary.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from decoding import head_checkpoint
from decoding.drafters.eagle_head import EagleHead
from decoding.head_batches import Batch, StateCache, group_alike, make_batch
from decoding.head_checkpoint import Best, Place
from decoding.head_settings import HeadProgress, HeadSettings
from decoding.target import TargetModel
from decoding.unroll import attend_unrolled, shift


class HeadTrainer:
    """Trains `head` against `target` on `texts`; `run` yields progress, `save_checkpoint` keeps all of it.

    Args:
        held_out: texts that agreement is measured on; the weights that do best on them are the result.
        identity: JSON values that name what else makes the run this run: a checkpoint of another is refused.
        states_folder: where the target's states of the texts are kept for later runs; None = nowhere.

    Attributes:
        step: training steps done.
        elapsed: seconds that they took, those of the runs before a kill counted.
        best: the best measurement so far.
    """

    def __init__(
        self,
        head: EagleHead,
        target: TargetModel,
        texts: list[np.ndarray],
        held_out: list[np.ndarray],
        settings: HeadSettings,
        identity: dict[str, Any] | None = None,
        states_folder: Path | None = None,
    ) -> None:
        self._identity = identity or {}
        self.head = head.to(target.device, torch.float32)
        self.target = target
        self.settings = settings
        self.step = 0
        self.elapsed = 0.0
        self._texts = texts
        self._held_out_texts = held_out
        self._held_out = group_alike(held_out, np.arange(len(held_out)), settings.batch_tokens)
        self.best = Best()
        target.capture(head.config.fused_layers)
        self._states = StateCache(target, states_folder)
        output = target.model.get_output_embeddings().weight
        self._label_rows_VH = output[head.target_ids_V.to(output.device)].to(target.device)
        self._embed = target.embeddings
        self.head.requires_grad_(True)
        self.head.lm_head.requires_grad_(not settings.freeze_output)
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in self.head.parameters() if parameter.requires_grad],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
        )

    @property
    def training_texts(self) -> int:
        """How many texts there are, held-out ones not counted."""
        return len(self._texts)

    @property
    def training_tokens(self) -> int:
        """Tokens of these."""
        return sum(map(len, self._texts))

    @property
    def epochs(self) -> float:
        """Times that the steps so far went through the texts."""
        epoch, done = self._place()
        return epoch + done / len(self._epoch_batches(epoch))

    @property
    def best_agreement(self) -> tuple[float, ...] | None:
        """Of the best measurement so far, by draft step; None before the first."""
        return self.best.agreement

    @property
    def stopped(self) -> Literal["early", "minutes"] | None:
        """Why there is nothing left to train, as `settings` stand: `patience` is lost, or `minutes` spent."""
        if self.settings.patience is not None and self.best.since >= self.settings.patience:
            return "early"
        return "minutes" if self.elapsed >= self.settings.minutes * 60 else None

    def run(self) -> Iterator[HeadProgress]:
        """Train until `stopped`; the last step is measured."""
        stopped = self.stopped
        while stopped is None:
            epoch, done_before = self._place()
            batches = self._epoch_batches(epoch)
            for place, numbers in enumerate(batches[done_before:], start=done_before + 1):
                started = time.perf_counter()
                rate = self.settings.learning_rate_at(self.step, self.elapsed)
                loss = self._train_step(numbers, rate)
                self.step += 1
                self.elapsed += time.perf_counter() - started
                agreement, stopped = None, self.stopped
                if self.step % self.settings.evaluate_every == 0 or stopped:
                    agreement = self.measure()
                    stopped = self.stopped
                tokens = sum(len(self._texts[number]) for number in numbers)
                at = epoch + place / len(batches)
                yield HeadProgress(self.step, at, self.elapsed, loss, rate, tokens, agreement)
                if stopped:
                    return

    def measure(self) -> tuple[float, ...]:
        """`agreement` now; the weights are kept if it is the best so far, summed over the draft steps."""
        agreement = self.agreement()
        self.best = self.best.after(agreement, self.step, self.head)
        return agreement

    def use_best(self) -> None:
        """Put the weights of the best measurement into `head`; the training cannot go on from there."""
        if self.best.weights:
            self.head.load_state_dict(self.best.weights)

    def _place(self) -> tuple[int, int]:
        """(epoch, batches of it that are done): epochs differ in their number of batches."""
        epoch, step = 0, self.step
        while step >= (batches := len(self._epoch_batches(epoch))):
            epoch, step = epoch + 1, step - batches
        return epoch, step

    def _epoch_batches(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self.settings.seed, epoch])
        batches = group_alike(self._texts, rng.permutation(len(self._texts)), self.settings.batch_tokens)
        return [batches[index] for index in rng.permutation(len(batches))]

    def _train_step(self, numbers: np.ndarray, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self._batch(self._texts, numbers)
        self.head.train()
        self.optimizer.zero_grad(set_to_none=True)
        labels_BNV = self._labels(batch)
        known_BN = self._known(batch)
        total = torch.zeros((), device=self.target.device)
        for step, states_BNH in enumerate(self._unroll(batch)):
            valid_BN = known_BN & self._valid(batch, step)
            log_probs = F.log_softmax(self.head.logits(states_BNH[valid_BN]), dim=-1)
            losses = -(labels_BNV[valid_BN] * log_probs).sum(-1)
            # Short texts, or ones outside the draft vocabulary, may leave a step without a single pair.
            total = total + self.settings.step_weight**step * losses.sum() / max(1, len(losses))
        if not torch.isfinite(total):
            raise ValueError(
                f"head training diverged at step {self.step}: loss {total.item()}; lower learning_rate"
            )
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimizer.step()
        return float(
            total.item() / sum(self.settings.step_weight**s for s in range(self.settings.unroll_steps))
        )

    @torch.no_grad()
    def agreement(self) -> tuple[float, ...]:
        """Held-out share, per draft step, of positions where the head's best token is the target's best."""
        self.head.eval()
        hits = np.zeros(self.settings.unroll_steps)
        seen = np.zeros(self.settings.unroll_steps)
        output = self.target.model.get_output_embeddings()
        for numbers in self._held_out:
            batch = self._batch(self._held_out_texts, numbers)
            best_BN = output(batch.finals_BNH.to(self.target.dtype)).argmax(-1)
            for step, states_BNH in enumerate(self._unroll(batch)):
                valid_BN = self._valid(batch, step)
                drafted = self.head.target_ids_V[self.head.logits(states_BNH[valid_BN]).argmax(-1)]
                hits[step] += (drafted == best_BN[valid_BN]).sum().item()
                seen[step] += valid_BN.sum().item()
        return tuple(float(share) for share in hits / np.maximum(seen, 1))

    def _unroll(self, batch: Batch) -> Iterator[torch.Tensor]:
        """States (B, N, H) of each draft step. At step s the query of pair j sees the true pairs up to j - s
        and, of each drafted step r, the one pair j - (s - r) on its own path."""
        layer = self.head.midlayer
        embeddings = self._embed(batch.tokens_BN).float()
        states = self.head.fc(batch.features_BNF)
        length = batch.tokens_BN.shape[1]
        positions = torch.arange(length, device=embeddings.device)
        drafted: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step in range(self.settings.unroll_steps):
            queries, keys, values = layer.project(embeddings, states, positions)
            if step == 0:
                true_keys, true_values = keys, values
            else:
                drafted.append((keys, values))
            mask_NN = positions[None, :] <= positions[:, None] - step
            attended = attend_unrolled(queries, true_keys, true_values, mask_NN, drafted)
            out = layer.finish(states, attended)
            yield out
            states = shift(out, 1)

    def _labels(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            return F.softmax((batch.finals_BNH @ self._label_rows_VH.float().T), dim=-1)

    def _known(self, batch: Batch) -> torch.Tensor:
        """Where the text's next token is in the draft vocabulary; elsewhere the labels would say little."""
        following = torch.cat([batch.tokens_BN[:, 1:], batch.tokens_BN[:, -1:]], dim=1)
        return self.head.t2d[following]

    def _valid(self, batch: Batch, step: int) -> torch.Tensor:
        index_N = torch.arange(batch.tokens_BN.shape[1], device=batch.tokens_BN.device)
        return (index_N >= step)[None, :] & (index_N[None, :] < batch.lengths_B[:, None])

    def _batch(self, texts: list[np.ndarray], numbers: np.ndarray) -> Batch:
        chosen = [texts[number] for number in numbers]
        return make_batch(chosen, self._states.states(chosen), self.target.device)

    def save_checkpoint(self, folder: Path) -> None:
        """Keep weights, optimiser and place in the run; the next `load_checkpoint` goes on from here."""
        place = Place(self.step, self.elapsed, self.best)
        head_checkpoint.save(folder, self.head, self.optimizer, place, self._run())

    def load_checkpoint(self, folder: Path) -> bool:
        """Go on from `folder` if it holds a checkpoint; ValueError if that is damaged or of another run."""
        place = head_checkpoint.load(folder, self.head, self.optimizer, self._run())
        if place is None:
            return False
        self.step, self.elapsed, self.best = place.step, place.elapsed, place.best
        return True

    def _run(self) -> dict[str, Any]:
        run: dict[str, Any] = json.loads(json.dumps(asdict(self.settings) | self._identity))
        return run
