"""The EAGLE head by plain loops in numpy: one text at a time, full causal attention, no cache, no masks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import nn

from decoding.drafters.eagle_head import EagleHead


class ReferenceHead:
    """Recomputes every state of a path from scratch."""

    def __init__(self, head: EagleHead, embeddings: nn.Module) -> None:
        self.config = head.config
        self.weights = {name: tensor.double().numpy() for name, tensor in head.state_dict().items()}
        self.embedding = next(embeddings.parameters()).detach().double().numpy()

    def states(self, tokens: Sequence[int], features: np.ndarray, path: Sequence[int]) -> list[np.ndarray]:
        """States of the pairs (tokens[i], features[i]) and then of the drafted `path`."""
        w, cfg = self.weights, self.config
        keys: list[np.ndarray] = []
        values: list[np.ndarray] = []
        states: list[np.ndarray] = []
        group = cfg.num_attention_heads // cfg.num_key_value_heads
        for place, token in enumerate([*tokens, *path]):
            state = w["fc.weight"] @ features[place] if place < len(tokens) else states[-1]
            wide = np.concatenate(
                [
                    self._norm(self.embedding[token], "midlayer.input_layernorm"),
                    self._norm(state, "midlayer.hidden_norm"),
                ]
            )
            query, key, value = (
                (w[f"midlayer.self_attn.{name}_proj.weight"] @ wide).reshape(-1, cfg.head_dim)
                for name in "qkv"
            )
            keys.append(self._rotated(key, place))
            values.append(value)
            query = self._rotated(query, place)
            heads = []
            for head in range(cfg.num_attention_heads):
                scores = np.array([query[head] @ k[head // group] for k in keys]) / math.sqrt(cfg.head_dim)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                heads.append(
                    sum(weight * v[head // group] for weight, v in zip(weights, values, strict=True))
                )
            state = state + w["midlayer.self_attn.o_proj.weight"] @ np.concatenate(heads)
            inner = self._norm(state, "midlayer.post_attention_layernorm")
            gate = w["midlayer.mlp.gate_proj.weight"] @ inner
            up = w["midlayer.mlp.up_proj.weight"] @ inner
            states.append(state + w["midlayer.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up))
        return states

    def logits(self, state: np.ndarray) -> np.ndarray:
        """Over the draft vocabulary."""
        logits: np.ndarray = self.weights["lm_head.weight"] @ self._norm(state, "norm")
        return logits

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scaled: np.ndarray = x / math.sqrt(float((x * x).mean()) + self.config.rms_norm_eps)
        return scaled * self.weights[f"{name}.weight"]

    def _rotated(self, heads: np.ndarray, place: int) -> np.ndarray:
        half = self.config.head_dim // 2
        turned = heads.copy()
        for i in range(half):
            angle = place * self.config.rope_theta ** (-2 * i / self.config.head_dim)
            cos, sin = math.cos(angle), math.sin(angle)
            turned[:, i] = heads[:, i] * cos - heads[:, i + half] * sin
            turned[:, i + half] = heads[:, i + half] * cos + heads[:, i] * sin
        return turned
