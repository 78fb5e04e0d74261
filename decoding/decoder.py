"""The decoder that people load: a target, a drafter and a controller behind `generate` and `stream`."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from jinja2 import TemplateError

from decoding.controller import Controller, FixedController
from decoding.drafters.base import Drafter
from decoding.drafters.load import load_drafter, shipped_heads
from decoding.exported_cycle import load_policy
from decoding.generation import Generation, Options, StreamPiece, checked_processors, checked_token_ids
from decoding.models import LoadedModel, load_model
from decoding.sampling import LogitsProcessor, Sampling
from decoding.session import FinishReason, Rule, Session
from decoding.stopping import StopStrings, check_stop_strings
from decoding.target import TargetModel
from decoding.text_stream import TextStream

Message = dict[str, str]
Prompt = str | Sequence[Message] | Sequence[int]


class SpeculativeDecoder:
    """Speculative decoding whose text never depends on drafter or controller (`coupled` rule).

    Use `from_pretrained`; the constructor takes parts that are loaded already.
    """

    def __init__(self, model: LoadedModel, drafter: Drafter, controller: Controller | None = None) -> None:
        self.model = model
        self.drafter = drafter
        usual = FixedController(drafter.draft_depth, drafter.verification_size)
        self.controller: Controller = usual if controller is None else controller

    @classmethod
    def from_pretrained(
        cls,
        target: str = "smollm2-135m",
        drafter: str | None = None,
        *,
        controller: Controller | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        path: str = "auto",
        beam_width: int = 4,
        min_match: int = 2,
        lookup_depth: int = 6,
        extra_layers: int = 0,
    ) -> SpeculativeDecoder:
        """Load target and drafter.

        Args:
            target: built-in name, folder, GGUF file or hub id.
            drafter: `ngram`, shipped head, folder or hub id, `composite`, `merged`; None = the head shipped
                for the built-in model, lookup for any other.
            controller: who decides depth and size; None = the drafter's usual fixed setting.
            dtype, device, path, extra_layers: see `load_model`.
            beam_width, min_match, lookup_depth: see `load_drafter`.

        Raises:
            ValueError: one line that names what is missing, and the way out.
        """
        model = load_model(target, device, dtype, path, extra_layers)
        name = default_drafter(target) if drafter is None else drafter
        return cls(model, load_drafter(name, model, beam_width, min_match, lookup_depth), controller)

    @property
    def target(self) -> TargetModel:
        return self.model.target

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    def use_policy(self, folder: Path) -> list[str]:
        """Let the policy exported to `folder` decide; return warnings, e.g. that it was trained elsewhere.

        A policy for another target or drafter is refused with ValueError.
        """
        controller = load_policy(folder)
        own = self.drafter.calibration
        # The scores that it was trained on, whatever has been measured since.
        self.drafter.calibration = controller.info.calibration
        try:
            warnings = controller.check(
                target_fingerprint=self.target.fingerprint(),
                drafter_fingerprint=self.drafter.fingerprint(),
                device=self.target.device.type,
                dtype=str(self.target.dtype).removeprefix("torch."),
            )
        except ValueError:
            self.drafter.calibration = own
            raise
        self.controller = controller
        return warnings

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a string is completed as it stands, messages (dicts with `role` and
        `content`) go through the chat template, token ids are taken as they are."""
        if isinstance(prompt, str):
            return list(self.tokenizer(_encodable(prompt))["input_ids"])
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise ValueError(f"a prompt is text, messages or token ids, not a {type(prompt).__name__}")
        items: list[Any] = list(prompt)
        if not items:
            raise ValueError("the prompt is empty: give text, messages or token ids")
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return items
        if not all(isinstance(item, dict) and {"role", "content"} <= item.keys() for item in items):
            raise ValueError(
                "a prompt is text, a list of {'role', 'content'} messages or a list of token ids"
            )
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError(f"{self.model.name} has no chat template: give the prompt as text")
        for item in items:
            if not isinstance(item["content"], str):
                raise ValueError(f"a message's content is {item['content']!r}, must be text")
            _encodable(item["content"])
        try:
            ids = self.tokenizer.apply_chat_template(
                items, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError as error:
            raise ValueError(f"the chat template of {self.model.name} refuses: {error}") from None
        return list(ids)

    def as_user(self, text: str) -> Prompt:
        """A user's message: through the chat template where the model has one, else the text as it stands."""
        if getattr(self.tokenizer, "chat_template", None):
            return [{"role": "user", "content": text}]
        return text

    def check_prompts(self, messages: Mapping[str, str]) -> None:
        """ValueError naming the first of these user messages, by its key, that does not fit the context."""
        limit = self.target.context_limit
        for name, text in messages.items():
            length = len(self.encode(self.as_user(text)))
            if length >= limit:
                raise ValueError(
                    f"prompt {name!r} has {length} tokens, the context holds {limit}: shorten it"
                )

    def open_session(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        logits_processors: Sequence[LogitsProcessor] | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Collection[int] | None = None,
        log_probs: bool = False,
        rule: Rule = "coupled",
        seed: int = 0,
    ) -> Session:
        """Prefill a request; the session's cycles are the caller's to drive.

        Args:
            prompt: see `encode`.
            max_new_tokens: most tokens to generate, >= 1; the context may leave fewer.
            temperature, top_k, top_p, min_p, repetition_penalty: see `Sampling`.
            logits_processors: transformers' or your own, see `Sampling.processors`.
            stop: strings that end the text, which is cut before them.
            stop_token_ids: ids that end the text, beside the model's own end-of-text ids.
            log_probs: keep the log-probability of every token.
            rule: `coupled` (the text is plain decoding's) or `rejection` (the law is the target's).
            seed: the text is a function of prompt and seed; under `rejection` of drafter and controller as
                well.
        """
        strings = check_stop_strings(stop)
        processors = checked_processors(logits_processors)
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, processors)
        ids = self.encode(prompt)
        return Session(
            self.target,
            self.drafter,
            ids,
            max_new_tokens=max_new_tokens,
            end_ids=self.model.end_ids | checked_token_ids(stop_token_ids, self.target.vocabulary_size),
            sampling=sampling,
            seed=seed,
            rule=rule,
            stop=StopStrings(strings, self.tokenizer, ids) if strings else None,
            log_probs=log_probs,
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        controller: Controller | None = None,
        seed: int | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Decode to the end.

        Args:
            prompt: see `encode`.
            controller: overrides the decoder's for this call.
            seed: None draws a fresh one; `Generation.seed` is the one used.
            options: those of `open_session`.
        """
        seed = fresh_seed() if seed is None else seed
        session = self.open_session(prompt, seed=seed, **options)
        cycles = list(session.run(self.controller if controller is None else controller))
        log_probs = [value for record in cycles for value in record.log_probs]
        text = self._text(session)
        return Generation(
            text=text,
            token_ids=session.generated,
            cycles=cycles,
            prefill_seconds=session.prefill_seconds,
            seed=seed,
            finish_reason=_finish_reason(session),
            log_probs=log_probs if options.get("log_probs") else None,
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        controller: Controller | None = None,
        seed: int | None = None,
        **options: Unpack[Options],
    ) -> Iterator[StreamPiece]:
        """Decode cycle by cycle, as `generate`; the pieces' texts joined are the text.

        Bad arguments raise here, before the first piece is asked for.
        """
        seed = fresh_seed() if seed is None else seed
        session = self.open_session(prompt, seed=seed, **options)
        return self._pieces(session, self.controller if controller is None else controller, seed)

    def _text(self, session: Session) -> str:
        # Decoded after the prompt's last token, as a stream is: some tokenizers drop a space that begins the
        # text.
        if session.stop is not None:
            session.stop.finish()
            return session.stop.text
        stream = TextStream(self.tokenizer, session.committed[: session.prompt_length])
        return stream.push(session.generated, last=True)

    def _pieces(self, session: Session, controller: Controller, seed: int) -> Iterator[StreamPiece]:
        stream = TextStream(self.tokenizer, session.committed)
        for record in session.run(controller):
            if session.stop is None:
                text = stream.push(record.token_ids, last=session.finished)
            else:
                # The session has read the tokens already, one by one: a stop string may end inside a cycle.
                if session.finished:
                    session.stop.finish()
                text = session.stop.take(last=session.finished)
            yield StreamPiece(text, record, seed, _finish_reason(session) if session.finished else None)


def _finish_reason(session: Session) -> FinishReason:
    assert session.finish_reason is not None
    # A stop string may be complete only once nothing can follow: where the text ended inside a character.
    found = session.stop is not None and session.stop.found is not None
    return "stop_string" if found else session.finish_reason


def _encodable(text: str) -> str:
    """The text, if it can be UTF-8; bytes that were none come as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the prompt is no valid UTF-8 text at character {error.start}") from None
    return text


def default_drafter(target: str) -> str:
    """The head shipped for a built-in target, lookup for any other."""
    name = f"{target}-eagle3"
    return name if name in shipped_heads() else "ngram"


def fresh_seed() -> int:
    """A seed of 32 random bits."""
    return secrets.randbits(32)
