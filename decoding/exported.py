"""Decode with an exported policy: two small networks in numpy, no learning library needed.

A policy is a folder. `policy.safetensors` holds fp32 weights, `{depth,size}.{layer}.{weight,bias}`;
`policy.json` says what they mean, and for which models and which machine they were trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from decoding.artifacts import load_tensors, read_json
from decoding.calibration import Calibration
from decoding.controller import DraftView, FixedController
from decoding.extra_layers import unmarked
from decoding.features import DepthFeatures, SizeFeatures
from decoding.published_features import PublishedDepthFeatures, PublishedSizeFeatures
from decoding.whole_folder import whole_folder

SCHEMA_VERSION = 2
WEIGHTS_FILE = "policy.safetensors"
INFO_FILE = "policy.json"
DEPTH_ACTIONS = ("stop", "continue")
_FINGERPRINTS = ("target", "drafter", "tokenizer")


@dataclass(frozen=True)
class Constant:
    """A fixed setting: what a policy falls back to."""

    draft_depth: int
    verification_size: int


@dataclass(frozen=True)
class PolicyInfo:
    """What is known of a policy besides its weights.

    Attributes:
        depth_features, size_features: what each network sees.
        verification_sizes: the size network's action table.
        fingerprints: of `target`, `drafter` and `tokenizer`.
        device, dtype: where it was trained, e.g. "cpu" and "float32".
        training: the configuration it was trained with.
        validation: what it reached on validation prompts.
        fallback: the best fixed setting there.
        calibration: of the drafter's scores, which the policy saw; None = uncalibrated.
    """

    depth_features: DepthFeatures
    size_features: SizeFeatures
    verification_sizes: tuple[int, ...]
    fingerprints: Mapping[str, str]
    device: str
    dtype: str
    training: Mapping[str, Any]
    validation: Mapping[str, Any]
    fallback: Constant
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        sizes = self.verification_sizes
        if any(type(size) is not int for size in sizes) or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"verification_sizes is {sizes}, must be whole numbers, strictly increasing")
        if not self.verification_sizes:
            raise ValueError("verification_sizes is empty, a policy needs at least one size")
        for size in (*self.verification_sizes, self.fallback.verification_size):
            FixedController(self.fallback.draft_depth, size)  # checks the limits of both
        missing = [name for name in _FINGERPRINTS if not isinstance(self.fingerprints.get(name), str)]
        if missing:
            raise ValueError(f"fingerprints lack {', '.join(missing)}")

    def to_json(self) -> dict[str, Any]:
        """The content of `policy.json` without its `networks`."""
        depth, size = self.depth_features, self.size_features
        return {
            "schema_version": SCHEMA_VERSION,
            "features": {
                "depth": {
                    "beam_width": depth.beam_width,
                    "max_depth": depth.max_depth,
                    "names": list(depth.names),
                },
                "size": {"max_size": size.max_size, "max_depth": size.max_depth, "names": list(size.names)},
            },
            "actions": {"depth": list(DEPTH_ACTIONS), "verification_sizes": list(self.verification_sizes)},
            "fingerprints": dict(self.fingerprints),
            "device": self.device,
            "dtype": self.dtype,
            "training": dict(self.training),
            "validation": dict(self.validation),
            "fallback": {
                "draft_depth": self.fallback.draft_depth,
                "verification_size": self.fallback.verification_size,
            },
            "calibration": None if self.calibration is None else self.calibration.to_json(),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PolicyInfo:
        """The inverse of `to_json`. KeyError, TypeError or ValueError if `raw` is something else."""
        version = raw["schema_version"]
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version!r}, this code reads {SCHEMA_VERSION}: export again")
        info = cls(
            depth_features=_named(DepthFeatures, PublishedDepthFeatures, "depth", raw["features"]["depth"]),
            size_features=_named(SizeFeatures, PublishedSizeFeatures, "size", raw["features"]["size"]),
            verification_sizes=tuple(raw["actions"]["verification_sizes"]),
            fingerprints=dict(raw["fingerprints"]),
            device=str(raw["device"]),
            dtype=str(raw["dtype"]),
            training=dict(raw["training"]),
            validation=dict(raw["validation"]),
            fallback=Constant(**raw["fallback"]),
            calibration=None if raw["calibration"] is None else Calibration.from_json(raw["calibration"]),
        )
        if tuple(raw["actions"]["depth"]) != DEPTH_ACTIONS:
            raise ValueError(f"its depth actions are not {', '.join(DEPTH_ACTIONS)}: export again")
        return info


Features = TypeVar("Features", DepthFeatures, SizeFeatures)


def _named(usual: type[Features], published: type[Features], kind: str, raw: Mapping[str, Any]) -> Features:
    """The features of these names. The names are the contract: the same network under other features would
    decide on other numbers."""
    shape = dict(raw)
    names = tuple(shape.pop("names"))
    # The first tells the two apart: nothing else of them may be built from the other's shape.
    features = (published if "log_prob" in str(names[:1]) else usual)(**shape)
    if features.names != names:
        raise ValueError(f"its {kind} features are not those that this code computes: export again")
    return features


class Network:
    """A multilayer perceptron in numpy.

    Args:
        layers: (weight (out, in), bias (out,)) of every layer, fp32; the last has one output an action.
        activation: between layers, "relu" or "tanh".
    """

    def __init__(self, layers: Sequence[tuple[np.ndarray, np.ndarray]], activation: str) -> None:
        if activation not in ("relu", "tanh"):
            raise ValueError(f"activation is {activation!r}, must be relu or tanh")
        self.layers = tuple(layers)
        self.activation = activation

    @property
    def widths(self) -> list[int]:
        """Inputs, outputs of each layer."""
        return [self.layers[0][0].shape[1], *(len(bias) for _, bias in self.layers)]

    def action(self, features: np.ndarray) -> int | None:
        """Index of the largest output, the first at a tie; None if an output is not a number."""
        outputs = self.outputs(features)
        best = int(outputs.argmax())  # numpy's argmax is a NaN wherever there is one
        return best if outputs[best] == outputs[best] else None

    def outputs(self, features: np.ndarray) -> np.ndarray:
        """float32, one an action, not finite where weights or features overflow."""
        x = features
        with np.errstate(all="ignore"):
            for weight, bias in self.layers[:-1]:
                x = weight @ x + bias
                x = np.maximum(x, 0.0) if self.activation == "relu" else np.tanh(x)
            weight, bias = self.layers[-1]
            return weight @ x + bias


class ExportedController:
    """Runs an exported policy greedily; a `decoding.controller.Controller`.

    Args:
        info: what the networks see and choose from.
        depth, size: the networks; without one, `info.fallback` takes its decisions: half a policy, beside
            which the other half is trained.

    Attributes:
        fallbacks: decisions that could not be computed and were taken by `info.fallback` instead.
    """

    def __init__(self, info: PolicyInfo, depth: Network | None, size: Network | None) -> None:
        self.info = info
        self.fallbacks = 0
        self._depth, self._size = depth, size
        self._constant = FixedController(info.fallback.draft_depth, info.fallback.verification_size)

    @classmethod
    def load(cls, folder: Path | str) -> ExportedController:
        """Read a policy folder; one-line ValueError if it is missing, damaged or of another schema."""
        folder = whole_folder(Path(folder))
        raw = read_json(folder / INFO_FILE, "policy")
        try:
            info = PolicyInfo.from_json(raw)
            described = {kind: raw["networks"][kind] for kind in ("depth", "size")}
            widths = {kind: list(network["widths"]) for kind, network in described.items()}
            activations = {kind: network["activation"] for kind, network in described.items()}
        except KeyError as error:
            raise ValueError(f"policy {folder / INFO_FILE} lacks {error}: export it again") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"policy {folder / INFO_FILE} cannot be used: {error}") from None
        weights = read_weights(folder)
        try:
            networks = {
                kind: read_network(weights, kind, widths[kind], activations[kind])
                for kind in ("depth", "size")
            }
            check_ends(info, networks["depth"], networks["size"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"policy weights {folder / WEIGHTS_FILE} do not fit {INFO_FILE}: {error}"
            ) from None
        return cls(info, networks["depth"], networks["size"])

    def check(self, target_fingerprint: str, drafter_fingerprint: str, device: str, dtype: str) -> list[str]:
        """Refuse other models than it was trained for; return one warning for each other difference."""
        return check_models(self.info, target_fingerprint, drafter_fingerprint, device, dtype)

    def wants_draft(self, view: DraftView) -> bool:
        if self._depth is not None and not self.info.depth_features.asks_at_root:
            return True
        return self._continues(view, self._constant.wants_draft)

    def wants_level(self, view: DraftView) -> bool:
        return self._continues(view, self._constant.wants_level)

    def _continues(self, view: DraftView, otherwise: Callable[[DraftView], bool]) -> bool:
        if self._depth is None:
            return otherwise(view)
        if view.tree.depth >= self.info.depth_features.max_depth:
            return False
        action = self._depth.action(self.info.depth_features(view))
        if action is None:
            self.fallbacks += 1
            return otherwise(view)
        return action == 1

    def verification_size(self, view: DraftView) -> int:
        if self._size is None:
            return self._constant.verification_size(view)
        action = self._size.action(self.info.size_features(view))
        if action is None:
            self.fallbacks += 1
            return self._constant.verification_size(view)
        return self.info.verification_sizes[action]


class Trained(Protocol):
    """What every exported policy says of where it was trained."""

    @property
    def fingerprints(self) -> Mapping[str, str]: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...


def check_models(info: Trained, target: str, drafter: str, device: str, dtype: str) -> list[str]:
    """ValueError for another target or drafter, by fingerprint; a warning for each other difference: a target
    with extra layers says the same as without, in another time."""
    for what, given in (("target", target), ("drafter", drafter)):
        trained = info.fingerprints[what]
        if unmarked(given) != unmarked(trained):
            raise ValueError(
                f"the policy was trained for {what} {trained}, this is {given}: train a policy for it"
            )
    return [
        f"the policy was trained on {what} {trained}, this is {given}: its timing may not fit"
        for what, trained, given in (
            ("target", info.fingerprints["target"], target),
            ("device", info.device, device),
            ("dtype", info.dtype, dtype),
        )
        if trained != given
    ]


def trained_drafter(training: Mapping[str, Any]) -> str | None:
    """The drafter that the configuration of a training names; None: the target's usual one."""
    model = training.get("model", {})
    name = model.get("drafter") if isinstance(model, Mapping) else model
    if not isinstance(model, Mapping) or not isinstance(name, str | None):
        raise ValueError(f"the policy's training names no drafter but {model!r}: export it again")
    return name


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """The float32 arrays of a policy folder."""
    tensors = load_tensors(folder / WEIGHTS_FILE, "policy weights")
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


def read_network(weights: Mapping[str, np.ndarray], kind: str, widths: list[int], activation: str) -> Network:
    """The network of this name; KeyError or ValueError if the arrays do not have these widths."""
    layers = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        weight, bias = (weights[f"{kind}.{index}.{part}"] for part in ("weight", "bias"))
        if weight.shape != (outputs, inputs) or bias.shape != (outputs,):
            raise ValueError(f"layer {index} of {kind} is {weight.shape}, not {(outputs, inputs)}")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ValueError(f"layer {index} of {kind} holds weights that are not finite")
        layers.append((weight.astype(np.float32), bias.astype(np.float32)))
    if not layers:
        raise ValueError(f"{kind} has no layer")
    return Network(layers, activation)


def check_ends(info: PolicyInfo, depth: Network, size: Network) -> None:
    """ValueError unless the networks take the features of `info` and give one output an action."""
    for kind, network, features, actions in (
        ("depth", depth, info.depth_features, len(DEPTH_ACTIONS)),
        ("size", size, info.size_features, len(info.verification_sizes)),
    ):
        ends = (network.widths[0], network.widths[-1])
        if ends != (len(features.names), actions):
            raise ValueError(
                f"{kind} maps {ends[0]} features to {ends[1]} actions, not {len(features.names)} to {actions}"
            )
