"""Train an EAGLE-3 head on the target's own distributions, with training-time test.

Training-time test (arXiv 2503.01840, section 3): the head is unrolled over several draft steps in training,
each step reading the states that the previous step made, so that it meets in training what it meets when
drafting.

Legend: B texts, N pairs of a text (token i + 1, state of position i), H hidden size, F = 3H, A attention
heads, G key/value heads, D head size, V draft vocabulary.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from decoding import head_checkpoint
from decoding.drafters.eagle_head import EagleHead
from decoding.target import TargetModel
from decoding.unroll import attend_unrolled, shift

_FEATURE_CACHE_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """How to train. `minutes` is wall-clock training time, over which the learning rate decays."""

    minutes: float = 15.0
    unroll_steps: int = 4
    batch_tokens: int = 1024
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    step_weight: float = 0.8
    evaluate_every: int = 100
    seed: int = 0


@dataclass(frozen=True, slots=True)
class HeadProgress:
    """One training step; `agreement` (held-out top-1 per draft step) only where it was measured."""

    step: int
    epoch: float
    elapsed: float
    loss: float
    learning_rate: float
    agreement: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded texts: tokens (B, N), features (B, N, F), the target's final states (B, N, H), lengths (B,)."""

    tokens_BN: torch.Tensor
    features_BNF: torch.Tensor
    finals_BNH: torch.Tensor
    lengths_B: torch.Tensor


def frequent_vocabulary(
    texts: list[np.ndarray], size: int, vocabulary_size: int, always: list[int]
) -> torch.Tensor:
    """The `size` most frequent ids of the texts plus `always`; ties and unseen ids in ascending order."""
    if not len(always) <= size <= vocabulary_size:
        raise ValueError(f"draft vocabulary of {size} is outside {len(always)}..{vocabulary_size}")
    counts = np.zeros(vocabulary_size, dtype=np.int64)
    for text in texts:
        counts += np.bincount(text, minlength=vocabulary_size)
    counts[always] = counts.max() + 1
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))


@torch.no_grad()
def initialise_from_target(head: EagleHead, target: TargetModel) -> None:
    """Start as the target's last layer over its high fused state; the embedding half starts at zero."""
    last = target.model.get_decoder().layers[-1]
    layer, size = head.midlayer, head.config.hidden_size
    head.fc.weight.zero_()
    head.fc.weight[:, 2 * size :].copy_(torch.eye(size))
    for name in ("q_proj", "k_proj", "v_proj"):
        wide = getattr(layer.self_attn, name).weight
        wide.zero_()
        wide[:, size:].copy_(getattr(last.self_attn, name).weight)
    layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    head.norm.weight.copy_(target.model.get_decoder().norm.weight)
    head.lm_head.weight.copy_(
        target.model.get_output_embeddings().weight[head.target_ids_V.to(target.device)]
    )
    # Embedding columns of exactly zero would leave queries and keys blind to the token for many steps.
    generator = torch.Generator().manual_seed(0)
    for name in ("q_proj", "k_proj", "v_proj"):
        wide = getattr(layer.self_attn, name).weight
        wide[:, :size].copy_(torch.randn(wide[:, :size].shape, generator=generator) * 0.02)


class HeadTrainer:
    """Trains `head` against `target` on `texts`; `run` yields progress, `save_checkpoint` keeps all of it.

    `identity` (JSON values) names what else makes the run this run: a checkpoint of another is refused.
    """

    def __init__(
        self,
        head: EagleHead,
        target: TargetModel,
        texts: list[np.ndarray],
        held_out: list[np.ndarray],
        settings: HeadSettings,
        identity: dict[str, Any] | None = None,
    ) -> None:
        self._identity = identity or {}
        self.head = head.to(target.device, torch.float32)
        self.target = target
        self.settings = settings
        self.step = 0
        self.elapsed = 0.0
        self._texts = texts
        self._held_out = _group(held_out, np.arange(len(held_out)), settings.batch_tokens)
        self._held_out_texts = held_out
        self._features: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._feature_bytes = 0
        target.capture(head.config.fused_layers)
        output = target.model.get_output_embeddings().weight
        self._label_rows_VH = output[head.target_ids_V.to(output.device)].to(target.device)
        self._embed = target.embeddings
        self.optimizer = torch.optim.AdamW(
            self.head.parameters(),
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
        )

    @property
    def training_tokens(self) -> int:
        """Tokens of the texts, held-out ones not counted."""
        return sum(map(len, self._texts))

    def run(self) -> Iterator[HeadProgress]:
        """Train until `minutes` are spent, counting those of the runs before a kill."""
        budget = self.settings.minutes * 60
        while self.elapsed < budget:
            epoch, done_before = self._place()
            batches = self._epoch_batches(epoch)
            for place, numbers in enumerate(batches[done_before:], start=done_before + 1):
                started = time.perf_counter()
                rate = self._learning_rate(self.elapsed / budget)
                loss = self._train_step(numbers, rate)
                self.step += 1
                self.elapsed += time.perf_counter() - started
                done = self.elapsed >= budget
                measured = self.step % self.settings.evaluate_every == 0 or done
                agreement = self.agreement() if measured else None
                at = epoch + place / len(batches)
                yield HeadProgress(self.step, at, self.elapsed, loss, rate, agreement)
                if done:
                    return

    def _place(self) -> tuple[int, int]:
        """(epoch, batches of it that are done): epochs differ in their number of batches."""
        epoch, step = 0, self.step
        while step >= (batches := len(self._epoch_batches(epoch))):
            epoch, step = epoch + 1, step - batches
        return epoch, step

    def _epoch_batches(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self.settings.seed, epoch])
        batches = _group(self._texts, rng.permutation(len(self._texts)), self.settings.batch_tokens)
        return [batches[index] for index in rng.permutation(len(batches))]

    def _learning_rate(self, progress: float) -> float:
        warm = min(1.0, (self.step + 1) / 40)
        return (
            self.settings.learning_rate
            * warm
            * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1, progress))))
        )

    def _train_step(self, numbers: np.ndarray, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self._batch(self._texts, numbers, keep=True)
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
            batch = self._batch(self._held_out_texts, numbers, keep=False)
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

    def _batch(self, texts: list[np.ndarray], numbers: np.ndarray, keep: bool) -> Batch:
        missing = [n for n in numbers if not keep or n not in self._features]
        fresh = dict(zip(missing, self._target_states([texts[n] for n in missing]), strict=True))
        rows = [fresh[n] if n in fresh else self._features[n] for n in numbers]
        for number, (features, finals) in fresh.items():
            if keep and self._feature_bytes < _FEATURE_CACHE_BYTES:
                self._features[number] = (features, finals)
                self._feature_bytes += 2 * (features.numel() + finals.numel())
        device = self.target.device
        lengths = torch.tensor([len(texts[n]) - 1 for n in numbers], device=device)
        longest = int(lengths.max())
        tokens = torch.zeros((len(numbers), longest), dtype=torch.int64)
        for row, number in enumerate(numbers):
            tokens[row, : len(texts[number]) - 1] = torch.from_numpy(texts[number][1:])
        features, finals = (
            torch.nn.utils.rnn.pad_sequence([row[part] for row in rows], batch_first=True).to(device).float()
            for part in (0, 1)
        )
        return Batch(tokens.to(device), features, finals, lengths)

    @torch.no_grad()
    def _target_states(self, texts: list[np.ndarray]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per text: fused features of positions 0..T-2 and final states of positions 1..T-1, as bf16."""
        if not texts:
            return []
        longest = max(map(len, texts))
        ids = torch.zeros((len(texts), longest), dtype=torch.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.from_numpy(text)
        features, finals = self.target.states(ids.to(self.target.device))
        keep = torch.bfloat16
        return [
            (features[row, : len(text) - 1].to("cpu", keep), finals[row, 1 : len(text)].to("cpu", keep))
            for row, text in enumerate(texts)
        ]

    def save_checkpoint(self, folder: Path) -> None:
        """Keep weights, optimiser and place in the run; the next `load_checkpoint` goes on from here."""
        head_checkpoint.save(folder, self.head, self.optimizer, self.step, self.elapsed, self._run())

    def load_checkpoint(self, folder: Path) -> bool:
        """Go on from `folder` if it holds a checkpoint; ValueError if that is damaged or of another run."""
        place = head_checkpoint.load(folder, self.head, self.optimizer, self._run())
        if place is None:
            return False
        self.step, self.elapsed = place
        return True

    def _run(self) -> dict[str, Any]:
        run: dict[str, Any] = json.loads(json.dumps(asdict(self.settings) | self._identity))
        return run


def _group(texts: list[np.ndarray], order: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Batches of text numbers of about `batch_tokens` tokens, alike in length so that little is padding."""
    batches: list[np.ndarray] = []
    for start in range(0, len(order), 64):
        chunk = sorted(order[start : start + 64], key=lambda n: len(texts[n]))
        current: list[int] = []
        for number in chunk:
            if current and (len(current) + 1) * len(texts[number]) > batch_tokens:
                batches.append(np.array(current))
                current = []
            current.append(int(number))
        batches.append(np.array(current))
    return batches
