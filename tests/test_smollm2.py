"""Exact text on the built-in model in fp32: plain decoding's, but for ties within the error of logits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding import builtin
from decoding.controller import Controller, FixedController, PlainController
from decoding.drafters.base import Drafter
from decoding.drafters.load import load_drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.kv_cache import TargetCache
from decoding.models import LoadedModel, load_model
from decoding.noise import NoiseStream
from decoding.sampling import Sampling, TokenChooser
from decoding.session import Session
from decoding.target import TargetOutput

pytestmark = pytest.mark.slow

HEAD = "smollm2-135m-eagle3"
MIXED = Path(__file__).resolve().parent.parent / "configs" / "prompts" / "mixed.jsonl"
TOKENS = 24
TEMPERATURES = (0.0, 1.0)
# Logits of one position differ by less between forwards of different shapes (measured below); a chosen
# token may differ only where the two stood closer than that.
LOGIT_ERROR = 1e-3


@dataclass
class Request:
    """A prompt, prefilled once for all its sessions, with what plain decoding made of it by temperature."""

    prompt: list[int]
    cache: TargetCache
    features: torch.Tensor | None
    texts: dict[float, list[int]] = field(default_factory=dict)
    logits: dict[float, list[torch.Tensor]] = field(default_factory=dict)

    @torch.inference_mode()
    def prefill(self, session: Session) -> None:
        """Stands in for the session's own prefill."""
        length = len(self.prompt) - 1
        assert isinstance(session.cache, TargetCache)
        for mine, its in zip(self.cache.layers, session.cache.layers, strict=True):
            keys, values = mine.buffer._keys_BGTD, mine.buffer._values_BGTD
            its.buffer.append(keys[:, :, :length], values[:, :, :length])
        session._draft.ingest(self.prompt[:1], None)
        session._draft.ingest(self.prompt[1:], self.features)


@dataclass
class World:
    model: LoadedModel
    head: Drafter
    requests: list[Request]

    def session(self, request: Request, drafter: Drafter, temperature: float) -> Session:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "_prefill", lambda session: request.prefill(session))
            return Session(
                self.model.target,
                drafter,
                request.prompt,
                max_new_tokens=TOKENS,
                end_ids=self.model.end_ids,
                sampling=Sampling(temperature),
                seed=0,
            )


@pytest.fixture(scope="module")
def world() -> World:
    """The model with 20 prompts over all categories, their prefills and their plain texts."""
    model = load_model(builtin.NAME, "cpu", "float32", "eager")
    head = load_drafter(HEAD, model)
    requests = []
    for line in MIXED.read_text(encoding="utf-8").splitlines()[::6]:
        messages = [{"role": "user", "content": json.loads(line)["turns"][0]}]
        prompt = list(
            model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        )
        cache = model.target.new_cache()
        assert isinstance(cache, TargetCache)
        output = model.target.forward(prompt[:-1], cache, last_logits_only=True)
        requests.append(Request(prompt, cache, output.features_RF))
    world = World(model, head, requests)
    for request in requests:
        for temperature in TEMPERATURES:
            decode_plainly(world, request, temperature)
    return world


def decode_plainly(world: World, request: Request, temperature: float) -> None:
    """Fill in the text of plain decoding and the logits that every token was chosen from."""
    session = world.session(request, NgramDrafter(), temperature)
    seen: list[torch.Tensor] = []
    forward = world.model.target.forward
    with pytest.MonkeyPatch.context() as patch:

        def recording(*args: Any, **kwargs: Any) -> TargetOutput:
            output = forward(*args, **kwargs)
            seen.append(output.logits_RV[-1])
            return output

        patch.setattr(world.model.target, "forward", recording)
        for _ in session.run(PlainController()):
            pass
    request.texts[temperature], request.logits[temperature] = session.generated, seen


def gap_between(request: Request, temperature: float, index: int, one: int, other: int) -> float:
    """How far apart two tokens stood in plain decoding, in units of a logit."""
    logits = request.logits[temperature][index].to(torch.float64)
    if temperature:
        noise = NoiseStream(0, request.prompt).gumbel([index], torch.arange(len(logits)))[0]
        logits = logits + temperature * noise
    return abs(float(logits[one] - logits[other]))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(
    ("name", "controller"), [("ngram", FixedController(6, 6)), (HEAD, FixedController(2, 8))]
)
def test_text_is_plain_decodings_but_for_ties(
    world: World, name: str, controller: Controller, temperature: float
) -> None:
    """20 prompts of 24 tokens; where texts part, the two tokens stood within the error of a logit."""
    drafter = NgramDrafter() if name == "ngram" else world.head
    accepted, ties = 0, 0
    for request in world.requests:
        session = world.session(request, drafter, temperature)
        for record in session.run(controller):
            accepted += record.accepted
            assert session.cache.length == len(session.committed) - 1
        plain, text = request.texts[temperature], session.generated
        parting = next(
            (i for i, pair in enumerate(zip(plain, text, strict=False)) if len(set(pair)) > 1), None
        )
        if parting is None:
            assert text == plain
            continue
        gap = gap_between(request, temperature, parting, plain[parting], text[parting])
        assert gap < LOGIT_ERROR, (
            f"fault, no tie: token {parting} is {text[parting]}, plain {plain[parting]}, {gap} apart"
        )
        ties += 1
    assert accepted >= 5, "hardly anything was accepted: this proves little"
    assert ties <= 2, f"{ties} ties in {len(world.requests)} texts: too many to be chance"


def test_logits_differ_by_little_between_forwards_of_one_row_and_of_many(world: World) -> None:
    """The measured error that classes ties: plain steps against one forward over the whole text."""
    worst = 0.0
    for request in world.requests[::5]:
        text = request.texts[0.0]
        session = world.session(request, NgramDrafter(), 0.0)
        rows = world.model.target.forward([request.prompt[-1], *text[:-1]], session.cache).logits_RV
        worst = max(worst, float((rows - torch.stack(request.logits[0.0])).abs().max()))
    assert 0 < worst < LOGIT_ERROR


def test_plain_text_is_what_the_recorded_logits_choose(world: World) -> None:
    """Temperature 1: the recorded rows with the noise of their own positions give the same text again."""
    for request in world.requests[::4]:
        chooser = TokenChooser(Sampling(1.0), NoiseStream(0, request.prompt))
        rows = torch.stack(request.logits[1.0])
        assert chooser.choose(rows, range(len(rows))) == request.texts[1.0]


def test_greedy_plain_text_is_transformers_generate(world: World) -> None:
    for request in world.requests[::7]:
        ids = torch.tensor([request.prompt])
        generated = world.model.target.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS
        )
        assert generated[0, len(request.prompt) :].tolist() == request.texts[0.0]
