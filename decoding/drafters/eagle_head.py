"""The EAGLE-3 head: one decoder layer over [token embedding, fused state], with a reduced vocabulary.

Architecture and checkpoint keys of EAGLE-3 (Li, Wei, Zhang, Zhang, arXiv 2503.01840): `fc` fuses three hidden
states of the target into one; `midlayer` attends over the concatenation of the normalised embedding of token
i + 1 and the normalised state of position i; its output, before `norm`, is the state that the next drafted
token starts from; `lm_head` scores the draft vocabulary, `d2t[j] + j` is the target id of draft id j, `t2d`
marks the target ids that the draft vocabulary holds.

Legend: B batch, T positions, R rows, H hidden size, F = 3H, A attention heads, G key/value heads, D head
size, K keys, V draft vocabulary.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from decoding.artifacts import load_tensors, read_json, save_tensors, write_json

if TYPE_CHECKING:
    from decoding.target import TargetModel

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


_POSITIVE = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "draft_depth",
    "verification_size",
)


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Shape of a head and the target it belongs to. `fused_layers` count as in `TargetModel`."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    fused_layers: tuple[int, int, int]
    rms_norm_eps: float
    rope_theta: float
    target_fingerprint: str | None = None
    draft_depth: int = 2
    verification_size: int = 8

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 1 << 20:
                raise ValueError(f"{name} is {value!r}, must be a whole number in 1..{1 << 20}")
        if len(self.fused_layers) != 3 or any(type(layer) is not int for layer in self.fused_layers):
            raise ValueError(f"fused_layers is {self.fused_layers!r}, must be three whole numbers")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < 1e12:
                raise ValueError(f"{name} is {value!r}, must be a number above 0")
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads, head_dim even")

    @classmethod
    def from_target(cls, target: TargetModel, draft_vocab_size: int) -> EagleConfig:
        """The head that fits a target: its own widths, and the states low, middle and high in its stack."""
        config = target.config
        layers = target.own_layers
        heads = config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        return cls(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_attention_heads=heads,
            num_key_value_heads=getattr(config, "num_key_value_heads", heads),
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocab_size=target.vocabulary_size,
            draft_vocab_size=draft_vocab_size,
            fused_layers=usual_layers(layers),
            rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta", 10_000.0),
            target_fingerprint=target.text_fingerprint(),
        )

    def misfit(self, target: TargetModel) -> str | None:
        """What tells that the head was made for another target, None if nothing does."""
        for what, its, wanted in (
            ("hidden size", self.hidden_size, target.hidden_size),
            ("vocabulary size", self.vocab_size, target.vocabulary_size),
            ("fingerprint", self.target_fingerprint or target.text_fingerprint(), target.text_fingerprint()),
        ):
            if its != wanted:
                return f"its {what} is {its}, the target's is {wanted}"
        return None


def usual_layers(target_layers: int) -> tuple[int, int, int]:
    """The states that EAGLE-3 fuses where a checkpoint names none: low, middle, high."""
    return min(2, target_layers), max(1, target_layers // 2), max(1, target_layers - 3)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in fp32 for half-precision inputs."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class EagleAttention(nn.Module):
    """Grouped-query attention whose inputs are twice as wide as its output. Returns q, k, v; the caller
    attends."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        wide, head = 2 * config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(wide, config.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(wide, config.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(wide, config.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head, config.hidden_size, bias=False)
        # No buffer: `module.to(bfloat16)` would round it, and far positions would turn by radians.
        self._frequencies = config.rope_theta ** -(torch.arange(0, head, 2, dtype=torch.float64) / head)

    def project(
        self, x_BTW: torch.Tensor, positions_T: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (B, A, T, D), keys and values (B, G, T, D), rotated to `positions_T`."""
        heads = (*x_BTW.shape[:2], -1, self.config.head_dim)
        q, k, v = (
            proj(x_BTW).view(heads).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        self._frequencies = self._frequencies.to(q.device)
        angles = positions_T.to(torch.float64)[:, None] * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

    def angles(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (T, D / 2), float64, of the first T = `positions` positions, on the CPU."""
        angles = torch.arange(positions, dtype=torch.float64)[:, None] * self._frequencies.cpu()
        return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class EagleMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class EagleLayer(nn.Module):
    """The decoder layer, split so that training and drafting bring their own attention pattern."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.self_attn = EagleAttention(config)
        self.mlp = EagleMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, eps)
        self.hidden_norm = RMSNorm(config.hidden_size, eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps)

    def project(
        self, embeddings_BTH: torch.Tensor, states_BTH: torch.Tensor, positions_T: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v of [normalised embedding, normalised state]."""
        x_BTW = torch.cat([self.input_layernorm(embeddings_BTH), self.hidden_norm(states_BTH)], dim=-1)
        return self.self_attn.project(x_BTW, positions_T)

    def finish(self, states_BTH: torch.Tensor, attended_BATD: torch.Tensor) -> torch.Tensor:
        """Output projection, residuals and MLP: the next states (B, T, H)."""
        flat = attended_BATD.transpose(1, 2).flatten(2)
        states_BTH = states_BTH + self.self_attn.o_proj(flat)
        return states_BTH + self.mlp(self.post_attention_layernorm(states_BTH))


class EagleHead(nn.Module):
    """The network alone. Token embeddings come from the target and are passed in."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = EagleLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.d2t = nn.Buffer(torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.t2d = nn.Buffer(torch.zeros(config.vocab_size, dtype=torch.bool))

    @property
    def target_ids_V(self) -> torch.Tensor:
        """int64 (V,): the target's id of each draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def set_vocabulary(self, target_ids: torch.Tensor) -> None:
        """Make the draft vocabulary these target ids: distinct, ascending, `draft_vocab_size` of them."""
        ids = target_ids.to(torch.int64).sort().values
        if len(ids.unique()) != self.config.draft_vocab_size:
            raise ValueError(
                f"draft vocabulary has {len(ids.unique())} distinct ids, not {self.config.draft_vocab_size}"
            )
        self.d2t.copy_(ids - torch.arange(len(ids)))
        self.t2d.zero_()
        self.t2d[ids.to(self.t2d.device)] = True

    def logits(self, states_H: torch.Tensor) -> torch.Tensor:
        """Scores over the draft vocabulary, (..., V), from states (..., H)."""
        scores: torch.Tensor = self.lm_head(self.norm(states_H))
        return scores

    def save(
        self, folder: Path, card: dict[str, Any] | None = None, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """Write weights and config into `folder`; `card` is kept inside the config."""
        state = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self.state_dict().items()
        }
        save_tensors(folder / WEIGHTS_FILE, state)
        config = {"architectures": ["LlamaForCausalLMEagle3"], **asdict(self.config)}
        write_json(folder / CONFIG_FILE, config | ({"card": card} if card else {}))

    @classmethod
    def load(cls, folder: Path, target_layers: int | None = None) -> EagleHead:
        """Read a head from `folder`; one-line ValueError when a file is missing, damaged or of other shapes.

        A config without `fused_layers`, as public checkpoints have it, means the usual ones of a target of
        `target_layers` layers. An embedding among the weights is left out: the target's is used.
        """
        raw = read_json(folder / CONFIG_FILE, "drafter config")
        known = {field.name for field in fields(EagleConfig)}
        values = {key: value for key, value in raw.items() if key in known}
        if target_layers is not None:
            values.setdefault("fused_layers", usual_layers(target_layers))
        try:
            values.setdefault("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
            values.setdefault("rope_theta", 10_000.0)
            values["fused_layers"] = tuple(values["fused_layers"])
            needed = [field.name for field in fields(EagleConfig) if field.default is MISSING]
            if missing := [name for name in needed if name not in values]:
                raise KeyError(f"{', '.join(missing)}: is it a head?")
            head = cls(EagleConfig(**values))
        except (TypeError, KeyError, ZeroDivisionError) as error:
            raise ValueError(f"drafter config {folder / CONFIG_FILE} lacks or mistypes {error}") from None
        except ValueError as error:
            raise ValueError(f"drafter config {folder / CONFIG_FILE}: {error}") from None
        state = load_tensors(folder / WEIGHTS_FILE, "drafter weights")
        try:
            head.load_state_dict({name: state[name] for name in state if name != "embed_tokens.weight"})
        except RuntimeError as error:
            first = str(error).splitlines()[-1].strip()
            raise ValueError(
                f"drafter weights {folder / WEIGHTS_FILE} do not fit their config: {first}"
            ) from None
        ids = head.target_ids_V
        if not 0 <= int(ids.min()) <= int(ids.max()) < head.config.vocab_size:
            raise ValueError(f"drafter weights {folder / WEIGHTS_FILE}: d2t leads outside the vocabulary")
        for name, weights in head.named_parameters():
            if not bool(torch.isfinite(weights).all()):
                raise ValueError(
                    f"drafter weights {folder / WEIGHTS_FILE}: {name} holds numbers that are not finite: "
                    "train the head again, or fetch it anew"
                )
        return head.eval()


def attend(
    queries_BATD: torch.Tensor,
    keys_BGKD: torch.Tensor,
    values_BGKD: torch.Tensor,
    mask_TK: torch.Tensor | None,
) -> torch.Tensor:
    """Scaled dot-product attention (B, A, T, D) with grouped keys; `mask_TK` True = may attend, None =
    all."""
    repeat = queries_BATD.shape[1] // keys_BGKD.shape[1]
    keys = keys_BGKD.repeat_interleave(repeat, dim=1)
    values = values_BGKD.repeat_interleave(repeat, dim=1)
    return F.scaled_dot_product_attention(queries_BATD, keys, values, attn_mask=mask_TK)
