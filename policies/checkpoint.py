"""Training that survives a kill: everything a PPO run needs to go on, as safetensors and JSON, no pickle.

A checkpoint is a folder: `checkpoint.json` names the one tensor file that belongs to it and is written last,
so that a kill between the two leaves the checkpoint before, whole. Checkpoints are taken at rollout
boundaries only, after an update: there is no half-filled buffer to keep.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from decoding.artifacts import load_tensors, read_json, save_tensors, sha256_file, write_json

SCHEMA_VERSION = 1
HEADER_FILE = "checkpoint.json"
_MOST = 2**53  # of a count, or of tokens per second: beyond it numbers are no longer exact


@dataclass(frozen=True)
class Header:
    """The JSON half.

    Attributes:
        run: what the run is: settings, seed and whatever else the caller named; JSON values.
        reference: the throughput that rewards are divided by, tokens per second.
        timesteps: decisions trained on so far.
        finished: whether that is all of them.
        tensors_file, sha256: the tensor half and its hash.
        updates: gradient passes so far.
        env_random: state of the environment's `np_random`.
        python_random: version and Gaussian carry of Python's generator, whose words are in the tensors.
        numpy_random: position and Gaussian carry of numpy's, likewise.
    """

    run: dict[str, Any]
    reference: float
    timesteps: int
    finished: bool
    tensors_file: str
    sha256: str
    updates: int
    env_random: dict[str, Any]
    python_random: list[Any]
    numpy_random: list[Any]

    def __post_init__(self) -> None:
        if not (isinstance(self.run, dict) and isinstance(self.tensors_file, str)):
            raise TypeError("run or tensors_file is mistyped")
        if Path(self.tensors_file).name != self.tensors_file:
            raise TypeError("tensors_file is no file beside it")
        for name in ("timesteps", "updates"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < _MOST:
                raise TypeError(f"{name} is {str(value)[:40]}, must be a whole number >= 0")
        if type(self.reference) not in (int, float) or not 0 < self.reference < _MOST:  # NaN is in no range
            raise TypeError(f"reference is {str(self.reference)[:40]}, must be a number above 0")
        if type(self.finished) is not bool:
            raise TypeError(f"finished is {str(self.finished)[:40]}, must be true or false")


def save(
    folder: Path, model: OnPolicyAlgorithm, run: Mapping[str, Any], reference: float, *, finished: bool
) -> None:
    """Write a checkpoint of `model` into `folder`, atomically, in place of an older one."""
    folder.mkdir(parents=True, exist_ok=True)
    # Each step count has a file of its own: the one that the header names is never overwritten.
    file = folder / f"checkpoint-{model.num_timesteps}{'-finished' if finished else ''}.safetensors"
    python_state, numpy_state = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002 (SB3's)
    assert isinstance(numpy_state, dict)
    tensors = {f"policy.{name}": tensor for name, tensor in model.policy.state_dict().items()}
    for index, state in model.policy.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    if lanes := _lanes_of(model):
        tensors |= {f"env.{name}": torch.from_numpy(array) for name, array in lanes.export_state().items()}
    tensors["random.torch"] = torch.get_rng_state()
    tensors["random.python"] = torch.tensor(python_state[1], dtype=torch.int64)
    tensors["random.numpy"] = torch.from_numpy(numpy_state["state"]["key"].astype(np.int64))
    save_tensors(file, tensors)
    header = Header(
        run=_plain(run),
        reference=reference,
        timesteps=model.num_timesteps,
        finished=finished,
        tensors_file=file.name,
        sha256=sha256_file(file),
        updates=model._n_updates,
        env_random=dict(_env_random(model).bit_generator.state),
        python_random=[python_state[0], python_state[2]],
        numpy_random=[numpy_state["state"]["pos"], numpy_state["has_gauss"], numpy_state["gauss"]],
    )
    write_json(folder / HEADER_FILE, {"schema_version": SCHEMA_VERSION, **vars(header)})
    for older in folder.glob("checkpoint-*.safetensors"):
        if older != file:
            older.unlink()


def read_header(folder: Path, run: Mapping[str, Any]) -> Header | None:
    """The header of the checkpoint in `folder`, None if there is none.

    One-line ValueError if it is damaged, or belongs to a run that is not `run`.
    """
    path = folder / HEADER_FILE
    header = _read(path)
    if header is None:
        return None
    different = _differences(header.run, _plain(run))
    if different:
        raise ValueError(
            f"checkpoint {path} is of another run ({'; '.join(different)}): use another folder or remove it"
        )
    return header


def _read(path: Path) -> Header | None:
    if not path.exists():
        return None
    raw = read_json(path, "checkpoint")
    version = raw.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"checkpoint {path} has schema_version {version!r}, not {SCHEMA_VERSION}: remove {path.parent}"
        )
    try:
        return Header(**raw)
    except TypeError as error:
        raise ValueError(
            f"checkpoint {path} is damaged ({error}): remove {path.parent} to start again"
        ) from None


def restore(folder: Path, header: Header, model: OnPolicyAlgorithm) -> None:
    """Put `model`, its environment's `np_random` and the global generators where the checkpoint left them.

    The environment itself starts afresh from its `np_random`: `TrainingCallback` resets it before every
    rollout, in uninterrupted runs too, so that both go the same way.
    """
    tensors = _tensors(folder, header)
    with _must_fit(folder / header.tensors_file):
        _load_policy(tensors, model)
        _restore_random(header, tensors, _env_random(model))
    model.num_timesteps, model._n_updates = header.timesteps, header.updates
    assert model.env is not None
    assert model.observation_space.shape is not None
    if lanes := _lanes_of(model):
        if header.finished:  # nobody goes on from there
            return
        state = {name: tensor.numpy() for name, tensor in _under(tensors, "env.").items()}
        model._last_obs = lanes.restore_state(state)
        model._last_episode_starts = lanes.episode_starts()
        return
    # Nothing may draw from, or seed again, the `np_random` just restored: not the seed that waits for the
    # environment's first reset, nor the reset by which `learn` gets a first observation. The placeholder is
    # replaced when the rollout starts.
    model.env._reset_seeds()
    model._last_obs = np.zeros((1, *model.observation_space.shape), dtype=np.float32)


class Lanes(Protocol):
    """A vectorised environment whose episodes under way can be saved."""

    rng: np.random.Generator

    def export_state(self) -> dict[str, np.ndarray]: ...
    def restore_state(self, state: dict[str, np.ndarray]) -> np.ndarray: ...
    def episode_starts(self) -> np.ndarray: ...


def _lanes_of(model: OnPolicyAlgorithm) -> Lanes | None:
    env: Any = model.env
    return env if hasattr(env, "export_state") else None


def finished_hash(folder: Path) -> str:
    """SHA-256 of what the finished training in `folder` left."""
    header = _read(folder / HEADER_FILE)
    if header is None or not header.finished:
        raise ValueError(f"the training in {folder} is not finished: run it again to go on")
    return header.sha256


def start_from(folder: Path, model: OnPolicyAlgorithm) -> None:
    """Give a fresh `model` the weights and the optimiser's state of the finished training in `folder`."""
    header = _read(folder / HEADER_FILE)
    if header is None or not header.finished:
        raise ValueError(f"the training in {folder} is not finished: nothing can go on from it")
    tensors = _tensors(folder, header)
    with _must_fit(folder / header.tensors_file):
        _load_policy(tensors, model)


def _tensors(folder: Path, header: Header) -> dict[str, torch.Tensor]:
    path = folder / header.tensors_file
    if path.is_file() and sha256_file(path) != header.sha256:
        raise ValueError(f"checkpoint {path} is damaged (another SHA-256): remove {folder} to start again")
    return load_tensors(path, "checkpoint")


@contextmanager
def _must_fit(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(
            f"checkpoint {path} does not fit the policy ({reason}): remove {path.parent}"
        ) from None


def _load_policy(tensors: Mapping[str, torch.Tensor], model: OnPolicyAlgorithm) -> None:
    model.policy.load_state_dict(_under(tensors, "policy."))
    _restore_optimizer(model.policy.optimizer, _under(tensors, "optimizer."))


def _env_random(model: OnPolicyAlgorithm) -> np.random.Generator:
    if lanes := _lanes_of(model):
        return lanes.rng
    env = model.env
    assert isinstance(env, DummyVecEnv)
    generator: np.random.Generator = env.envs[0].unwrapped.np_random
    return generator


def _restore_random(header: Header, tensors: Mapping[str, torch.Tensor], env: np.random.Generator) -> None:
    version, python_gauss = header.python_random
    random.setstate((version, tuple(tensors["random.python"].tolist()), python_gauss))
    position, has_gauss, gauss = header.numpy_random
    words = tensors["random.numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", words, position, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(tensors["random.torch"])
    env.bit_generator.state = header.env_random


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    # The groups hold settings alone, which the model was built with.
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _under(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def _plain(run: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples become lists."""
    plain: dict[str, Any] = json.loads(json.dumps(run, allow_nan=False))
    return plain


def _differences(saved: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`key: saved, not asked` for every leaf that differs."""
    found = []
    for key in sorted({*saved, *asked}):
        one, other = saved.get(key), asked.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += _differences(one, other, f"{prefix}{key}.")
        elif one != other:
            found.append(f"{prefix}{key}: {one!r}, not {other!r}")
    return found
