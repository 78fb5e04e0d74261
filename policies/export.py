"""From trained PPO models to the folder that a decoder loads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3 import PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from decoding.artifacts import save_tensors, write_json
from decoding.exported import INFO_FILE, WEIGHTS_FILE, Network, PolicyInfo, check_ends
from decoding.exported_cycle import KIND, CyclePolicyInfo
from decoding.exported_cycle import check_ends as check_cycle_ends
from decoding.whole_folder import replaced_folder

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


def network_of(model: OnPolicyAlgorithm) -> Network:
    """The part of a PPO policy that decides, its policy net and action net, as fp32."""
    policy = model.policy
    assert isinstance(policy, ActorCriticPolicy | MaskableActorCriticPolicy)
    if not isinstance(policy.features_extractor, FlattenExtractor):
        raise ValueError(f"a policy with a {type(policy.features_extractor).__name__} cannot be exported")
    return network_of_layers([*policy.mlp_extractor.policy_net, policy.action_net])


def network_of_layers(modules: Sequence[nn.Module]) -> Network:
    """Linear layers with one kind of activation between them, as fp32; ValueError if they are not finite."""
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    between = {type(module) for module in modules if not isinstance(module, nn.Linear)}
    if len(between) > 1 or not between <= _ACTIVATIONS.keys():
        names = ", ".join(sorted(kind.__name__ for kind in between))
        raise ValueError(f"a policy with {names} between its layers cannot be exported: use ReLU or Tanh")
    for one, other in pairwise(linear):
        if one.out_features != other.in_features:
            raise ValueError(
                f"a layer of {one.out_features} outputs before one of {other.in_features} inputs: train"
                " the policy again"
            )
    layers = [(_array(layer.weight), _array(layer.bias)) for layer in linear]
    if not all(np.isfinite(array).all() for layer in layers for array in layer):
        raise ValueError(
            "the policy holds weights that are not finite: its training diverged, lower learning_rate"
        )
    return Network(layers, _ACTIVATIONS[between.pop()] if between else "relu")


def export_policy(folder: Path, depth_model: PPO, size_model: PPO, info: PolicyInfo) -> None:
    """Write the pair into `folder`, atomically, in place of an older policy there.

    Args:
        folder: created; an existing one is replaced only if it holds a policy and nothing else.
        depth_model, size_model: trained on the features of `info`.
        info: everything else that the folder says.
    """
    networks = {"depth": network_of(depth_model), "size": network_of(size_model)}
    check_ends(info, networks["depth"], networks["size"])
    _write(folder, info.to_json(), networks)


def export_cycle(folder: Path, network: Network, info: CyclePolicyInfo) -> None:
    """The same of a policy that takes every decision of a cycle."""
    check_cycle_ends(info, network)
    _write(folder, info.to_json(), {KIND: network})


def _write(folder: Path, info: dict[str, Any], networks: dict[str, Network]) -> None:
    _check_replaceable(folder)
    with replaced_folder(folder) as fresh:
        save_tensors(fresh / WEIGHTS_FILE, _tensors(networks))
        described = {
            kind: {"widths": network.widths, "activation": network.activation}
            for kind, network in networks.items()
        }
        write_json(fresh / INFO_FILE, info | {"networks": described})


def _check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    strangers = (
        sorted({path.name for path in folder.iterdir()} - {WEIGHTS_FILE, INFO_FILE})
        if folder.is_dir()
        else []
    )
    if strangers or not folder.is_dir():
        raise ValueError(
            f"{folder} is no exported policy ({', '.join(strangers) or 'a file'}) and will not be replaced: "
            "name another folder"
        )


def _tensors(networks: dict[str, Network]) -> dict[str, torch.Tensor]:
    return {
        f"{kind}.{index}.{part}": torch.from_numpy(array)
        for kind, network in networks.items()
        for index, layer in enumerate(network.layers)
        for part, array in zip(("weight", "bias"), layer, strict=True)
    }


def _array(parameter: torch.Tensor) -> np.ndarray:
    # A copy: training on must not change what was taken.
    array: np.ndarray = parameter.detach().to("cpu", torch.float32).numpy().copy()
    return array
