"""A target without its transformers model: packed weights, embeddings, and what is known of the rest.

The fast path needs no more, and transformers' model classes take longer to import than the weights to read.
See `proof.py` for the folders whose targets may be loaded so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from decoding.fast_forward import FastForward
from decoding.linear import speed_up_few_rows
from decoding.llama_stack import StackShape, stack_of_weights
from decoding.target import TargetModel
from decoding.weight_files import WeightFiles


@dataclass(frozen=True, slots=True)
class Facts:
    """What the ordinary load finds out about a folder beside its weights; all of it can be JSON.

    Attributes:
        shape: of the packed stack.
        config: the model config's values, defaults filled in.
        end_ids: ids that end a text, ascending.
        fingerprint: the target's.
        tokenizer: module and name of its class.
    """

    shape: StackShape
    config: dict[str, Any]
    end_ids: tuple[int, ...]
    fingerprint: str
    tokenizer: tuple[str, str]

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> Facts:
        """Of what `dataclasses.asdict` made, after it has been JSON."""
        shape = raw["shape"] | {"frequencies": tuple(raw["shape"]["frequencies"])}
        tuples = {name: tuple(raw[name]) for name in ("end_ids", "tokenizer")}
        return cls(**raw | tuples | {"shape": StackShape(**shape)})


class LightTarget(TargetModel):
    """A target on the fast path whose transformers model is loaded when it is first asked for.

    Args:
        folder: of the model.
        facts: proved of this folder as it is now.
        load: loads the transformers model, for those who train on it or want the eager path.
    """

    def __init__(self, folder: Path, facts: Facts, load: Callable[[], Any]) -> None:
        # Not the base's: that begins with the model.
        self._facts, self._load = facts, load
        self._loaded: Any = None
        self._captured, self._hooks = {}, []
        with _one_thread():
            stack = stack_of_weights(WeightFiles(folder).read, facts.shape)
        self._embeddings = nn.Embedding.from_pretrained(stack.embeddings)
        self.config = SimpleNamespace(**facts.config)
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.hidden_size = self.config.hidden_size
        self.vocabulary_size = stack.outputs
        self.context_limit = self.config.max_position_embeddings
        self.fast, self.slow_reason = FastForward(stack), ""
        self.fused_layers = ()

    @property
    def model(self) -> Any:
        """The transformers model; its weights are in memory a second time once it has been asked for."""
        if self._loaded is None:
            self._loaded = self._load()
            speed_up_few_rows(self._loaded)
            self._hook()
        return self._loaded

    def _hook(self) -> None:
        if self._loaded is not None:
            super()._hook()

    @property
    def embeddings(self) -> nn.Module:
        return self._embeddings

    def fingerprint(self) -> str:
        # A model that was loaded may have been changed since.
        return self._facts.fingerprint if self._loaded is None else super().fingerprint()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Hundreds of short copies: on a busy machine a team of threads waits for its last one after each, and
    the load takes five times as long; on an idle one it gains a tenth of a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def load_tokenizer(folder: Path, module: str, name: str) -> Any:
    """What transformers' AutoTokenizer loads from a folder once it has found the class; it imports every
    family's config first."""
    if module.partition(".")[0] != "transformers":
        raise ValueError(f"the tokenizer's class {module}.{name} is not transformers' own")
    return getattr(import_module(module), name).from_pretrained(str(folder), local_files_only=True)
