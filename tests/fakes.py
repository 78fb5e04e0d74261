"""Tiny random models and drafters: what the tests decode with. No downloads, no weights on disk."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from decoding.calibration import Calibration, TemperatureFit
from decoding.controller import DraftView, PlainController
from decoding.drafters.base import Drafter, DraftState
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import EagleConfig, EagleHead
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.noise import NoiseStream
from decoding.sampling import Sampling
from decoding.scoring import LevelScale
from decoding.session import Session
from decoding.target import TargetModel
from decoding.tree import DraftTree

VOCABULARY = 40
END_ID = 2


def tiny_target(
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    context: int = 256,
    spread: float = 1.0,
    layers: int = 4,
) -> TargetModel:
    """A small Llama with grouped-query attention, 40 tokens. Larger `spread` = surer distributions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=1,
        eos_token_id=END_ID,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False).to(dtype)
    model.lm_head.weight.mul_(spread)
    return TargetModel(model)


def tiny_head(target: TargetModel, draft_vocab_size: int = 30, seed: int = 1) -> EagleHead:
    """A random head that fits `target`, drafting all ids but the first few odd ones."""
    torch.manual_seed(seed)
    head = EagleHead(EagleConfig.from_target(target, draft_vocab_size))
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    head.set_vocabulary(torch.arange(VOCABULARY - draft_vocab_size, VOCABULARY))
    return head.to(target.dtype).eval().requires_grad_(False)


def tiny_eagle(target: TargetModel, beam_width: int = 3, **head: Any) -> EagleDrafter:
    """A drafter with a random head; makes the target capture its layers."""
    drafter = EagleDrafter(
        tiny_head(target, **head), target.embeddings, target.device, target.dtype, beam_width
    )
    target.capture(drafter.fused_layers)
    return drafter


def tiny_causal_lm(
    target: TargetModel,
    seed: int = 5,
    beam_width: int = 3,
    vocabulary: int = VOCABULARY,
    context: int = 256,
) -> CausalLMDrafter:
    """A drafter that is a smaller random Llama with a vocabulary of its own size; the target captures
    nothing for it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False).to(target.dtype)
    target.capture(())
    return CausalLMDrafter(TargetModel(model), target, beam_width, "tiny")


@cache
def shared_target() -> TargetModel:
    """One small target for the tests of a process; it captures what `drafter_called("eagle")` reads."""
    return tiny_target(layers=2)


@cache
def drafter_called(name: str) -> Drafter:
    """A drafter for `shared_target()`: `eagle`, `causal`, `ngram`, or `merged` and `composite` with EAGLE."""
    if name == "causal":
        return tiny_causal_lm(tiny_target(layers=2))  # it would make the shared one capture nothing
    lookup = NgramDrafter(1, vocabulary_size=shared_target().vocabulary_size)
    if name == "ngram":
        return lookup
    head = tiny_eagle(shared_target(), beam_width=3)
    if name == "merged":
        return MergedDrafter(head, lookup, lookup_depth=4)
    return CompositeDrafter(head, lookup) if name == "composite" else head


def tiny_calibration(temperatures: Sequence[float] = (0.0, 1.0), shift: float = 0.0) -> Calibration:
    """Of two levels, no two numbers alike; a larger `shift` = a lookup that is trusted more."""
    fits = [
        TemperatureFit(
            temperature,
            (LevelScale(1.3 + 0.2 * place, 0.9 - 0.1 * place), LevelScale(0.8 + 0.3 * place, 0.85)),
            (shift - 0.9, 0.5, 0.8 + 0.1 * place, -0.7, 0.15, 0.4 * place, 0.25, 0.6, 0.35),
            100 + place,
        )
        for place, temperature in enumerate(temperatures)
    ]
    return Calibration(tuple(fits), {"target": "aa", "drafter": "bb"})


def draw_chain(
    state: DraftState, levels: int, ranks: Sequence[int] = (0,)
) -> tuple[DraftTree, list[torch.Tensor]]:
    """A new chain of at most `levels` tokens, by turns the `ranks`-th likeliest (0 = the likeliest; the last
    one, where fewer can be drawn), and the logits that they were drawn from."""
    tree = state.begin()
    asked: list[torch.Tensor] = []
    for level in range(levels):
        logits = state.next_logits()
        if logits is None:
            break
        asked.append(logits.clone())
        possible = int((logits > -torch.inf).sum())
        token = int(logits.argsort(descending=True)[min(ranks[level % len(ranks)], possible - 1)])
        state.append(token, -0.5 * (level + 1))
    state.next_logits()  # a controller may look at what would come next and then stop
    return tree, asked


def plain_text(
    target: TargetModel,
    prompt: Sequence[int],
    tokens: int,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    seed: int = 0,
    end_ids: Collection[int] = (),
) -> list[int]:
    """What plain decoding emits after `prompt`."""
    session = Session(
        target,
        NgramDrafter(),
        prompt,
        max_new_tokens=tokens,
        end_ids=end_ids,
        sampling=sampling,
        seed=seed,
    )
    for _ in session.run(PlainController()):
        pass
    return session.generated


class ScriptController:
    """Answers from a list, over and over: what a policy at fault, or at random, would say."""

    def __init__(self, draft: Sequence[bool], sizes: Sequence[int]) -> None:
        self._draft = cycle(draft)
        self._sizes = cycle(sizes)

    def wants_draft(self, view: DraftView) -> bool:
        return next(self._draft)

    def wants_level(self, view: DraftView) -> bool:
        return next(self._draft)

    def verification_size(self, view: DraftView) -> int:
        return next(self._sizes)


class OracleDrafter:
    """Drafts the target's own continuation, with a mistake wherever `wrong` says so: acceptance at will.

    Args:
        text: the tokens that plain decoding emits after the prompt.
        wrong: positions of that text at which only wrong tokens are drafted.
        branches: children of each drafted node, the right one at a changing place among them. With more than
            one, the first wrong branch is drafted on as well.
    """

    name = "oracle"
    fused_layers: tuple[int, ...] = ()
    draft_depth = 4
    verification_size = 4

    def __init__(self, text: Sequence[int], wrong: Collection[int] = frozenset(), branches: int = 1) -> None:
        self.calibration: Calibration | None = None
        self.text = list(text)
        self.wrong = frozenset(wrong)
        self.branches = branches

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> OracleState:
        return OracleState(self, prompt_length)

    def fingerprint(self) -> str:
        return "oracle"


class OracleState(DraftState):
    def __init__(self, drafter: OracleDrafter, prompt_length: int) -> None:
        self._drafter = drafter
        self._generated = -prompt_length
        self._last = 0
        self._tree = DraftTree(0)
        self._growing = [0]
        self.levels_drafted = 0

    def ingest(
        self,
        token_ids: Sequence[int],
        features_RF: torch.Tensor | None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self._generated += len(token_ids)
        self._last = token_ids[-1]

    def depth_limit(self) -> int:
        return 1 << 30

    def begin(self) -> DraftTree:
        self._tree = DraftTree(self._last)
        self._growing = [0]
        return self._tree

    def next_logits(self) -> torch.Tensor | None:
        place = self._generated + self._tree.depth
        if place >= len(self._drafter.text):
            return None
        logits = torch.full((VOCABULARY,), -torch.inf)
        shift = 1 if place in self._drafter.wrong else 0
        logits[(self._drafter.text[place] + shift) % VOCABULARY] = 0.0
        return logits

    def append(self, token_id: int, score: float) -> None:
        self._tree.add_level([token_id], [self._tree.size], [score])
        self.levels_drafted += 1

    def extend(self) -> bool:
        place = self._generated + self._tree.depth
        if place >= len(self._drafter.text):
            return False
        branches = self._drafter.branches
        shift = 1 if place in self._drafter.wrong else 0
        right = place % branches
        children = [
            (self._drafter.text[place] + shift + (branch - right) % branches) % VOCABULARY
            for branch in range(branches)
        ]
        tokens, parents, scores = [], [], []
        for parent in self._growing:
            for branch, token in enumerate(children):
                tokens.append(token)
                parents.append(parent)
                scores.append(self._tree.scores[parent] - 0.5 - 0.1 * branch)
        level = self._tree.add_level(tokens, parents, scores)
        self._growing = [level[right]]
        if branches > 1:
            self._growing.append(level[(right + 1) % branches])
        self.levels_drafted += 1
        return True


def save_tiny_model(folder: Path, seed: int = 0) -> Path:
    """A four-layer Llama with a byte tokenizer and a chat template, as a folder that any loader reads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    bytewise = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytewise, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = "{% for message in messages %}<s>{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=END_ID,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_tiny_head(folder: Path, model_folder: Path, seed: int = 1) -> Path:
    """A random EAGLE-3 head for the model in `model_folder`."""
    from decoding.models import load_model

    target = load_model(str(model_folder), "cpu", "float32").target
    torch.manual_seed(seed)
    head = EagleHead(EagleConfig.from_target(target, 100))
    head.set_vocabulary(torch.arange(60, 160))
    head.save(folder, dtype=torch.float32)
    return folder
