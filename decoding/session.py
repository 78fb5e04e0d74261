"""One request: draft, select, verify, commit, cycle after cycle. Yields questions and records; counts
nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import torch

from decoding.chain import Drawn, ModelChain, SeededDraws, draft_chain
from decoding.controller import HISTORY, Asked, Controller, DraftView, Question, RootChoice, answer
from decoding.drafters.base import Drafter
from decoding.machine import native_alone
from decoding.noise import NoiseStream
from decoding.records import CycleRecord
from decoding.sampling import Sampling, TokenChooser, no_distribution, token_probs
from decoding.stopping import StopStrings
from decoding.target import TargetModel, TargetOutput
from decoding.timing import PhaseClock, now
from decoding.tree import Selection
from decoding.verify import Verdict, accept_coupled, accept_rejection

Cycle = Generator[Question, int, CycleRecord]
Rule = Literal["coupled", "rejection"]
RULES: tuple[Rule, ...] = ("coupled", "rejection")
FinishReason = Literal["end_token", "stop_string", "length"]


class Session:
    """The state of one request, prefilled up to its last prompt token, which is the first root.

    Args:
        target: the model whose law the text follows.
        drafter: proposes trees; its `fused_layers` must be captured by the target.
        prompt_ids: at least one token id.
        max_new_tokens: most tokens to emit, >= 1; held to what the context leaves.
        end_ids: ids that end the text (the ending id is emitted).
        sampling: temperature, filters, processors.
        seed: keys the noise together with the prompt.
        rule: of verification. `coupled`: the text is plain decoding's, whatever is drafted. `rejection`: the
            law is the target's; drafts are chains, and every drafted token is verified.
        stop: ends the text as well; None = nothing but `end_ids` and the limits does.
        log_probs: whether records carry the log-probabilities of their tokens.

    Attributes:
        committed: token ids of prompt and text; `cache.length == len(committed) - 1` after every cycle.
        prefill_seconds: wall-clock time of the prefill.
        finish_reason: why the text ended; None while it goes on.
        rule: of verification.
        chooser: chooses the target's tokens under `coupled`: the request's sampling settings and its noise.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        end_ids: Collection[int],
        sampling: Sampling,
        seed: int,
        rule: Rule = "coupled",
        stop: StopStrings | None = None,
        log_probs: bool = False,
    ) -> None:
        check_prompt(prompt_ids, target, max_new_tokens)
        check_rule(rule)
        if type(seed) is not int or not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed is {seed!r}, must be a whole number of 64 bits")
        if tuple(drafter.fused_layers) not in ((), target.fused_layers):
            raise ValueError(
                f"drafter {drafter.name} reads layers {drafter.fused_layers}, "
                f"the target captures {target.fused_layers}"
            )
        self.committed = list(prompt_ids)
        self.prompt_length = len(prompt_ids)
        self.finish_reason: FinishReason | None = None
        self._broken = False
        self._token_limit = min(self.prompt_length + max_new_tokens, target.context_limit)
        self._target = target
        self._end_ids = frozenset(end_ids)
        noise = NoiseStream(seed, prompt_ids)
        self._sampling = sampling
        self.chooser = TokenChooser(sampling, noise)
        self._draws = SeededDraws(seed, prompt_ids) if rule == "rejection" else None
        self.stop, self.rule = stop, rule
        self._wants_log_probs = log_probs
        self._draft = drafter.start(noise, sampling.temperature, self.prompt_length)
        self._clock = PhaseClock(target.device)
        self._last_features: torch.Tensor | None = None
        self._history: deque[CycleRecord] = deque(maxlen=HISTORY)
        started = now(target.device)
        self.cache = target.new_cache()
        with self._alone():
            self._prefill()
        self.prefill_seconds = now(target.device) - started

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def tokens_left(self) -> int:
        return self._token_limit - len(self.committed)

    @property
    def generated(self) -> list[int]:
        """Token ids emitted so far."""
        return self.committed[self.prompt_length :]

    def run(self, controller: Controller) -> Iterator[CycleRecord]:
        """Decode to the end, every question put to `controller`, which answers as the models run: on one of
        torch's threads where native code decodes, else in inference mode."""
        while not self.finished:
            with self._alone():  # once for the whole cycle: going in and out costs microseconds
                record = driven(self._cycle(), controller)
            yield record

    def cycle(self) -> Cycle:
        """One cycle as a generator: yields questions, is sent answers, returns the record.

        The one loop for decoding, training and evaluation: whoever drives it decides who answers. Time
        between a question and its answer is charged to the policy.
        """
        cycle = self._cycle()
        reply: int | None = None
        while True:
            try:
                with self._alone():
                    question = cycle.send(reply) if reply is not None else next(cycle)
            except StopIteration as done:
                return done.value
            reply = yield question  # whoever answers may want all of torch's threads, and gradients

    def _alone(self) -> AbstractContextManager[object]:
        """What decoding needs of torch: native code's tensors know no gradients, and it wants the cores."""
        return torch.inference_mode() if self._target.fast is None else native_alone()

    def _cycle(self) -> Cycle:
        if self.finished:
            raise ValueError("the request is finished: it met an end token, a stop string or its token limit")
        if self._broken:
            raise ValueError("the request failed while a draft was verified: begin it anew")
        clock = self._clock
        clock.start()
        context_length = len(self.committed)
        tree = self._draft.begin()
        limit = min(self.tokens_left - 1, self._draft.depth_limit())
        view = DraftView(tree, limit, context_length, self.tokens_left, self._history)
        view.lookup = self._draft.hint()
        view.temperature = self._sampling.temperature
        asked = Asked.of(view)
        clock.lap("draft")
        drawn: Drawn | None = None
        if self._draws is None:
            view.root_choices = self._draft.root_choices
            yield from self._draft_levels(asked, limit, clock)
            size = 0
            if tree.size:
                size = max(0, min(tree.size, (yield asked.size)))
                clock.lap("policy")
            selection = tree.select(size)
            selection.tokens[0] = self.committed[-1]  # whatever a controller wrote into the tree it was shown
        else:
            chain = ModelChain(self._draft, self._sampling, self.committed)
            drawn = yield from draft_chain(chain, view, self._draws, clock.lap)
            # All of it: to leave out a token for what it is would bias the text.
            selection = Selection.of([self.committed[-1], *drawn.tokens], range(-1, len(drawn.tokens)))
        clock.lap("select")
        self._broken = True
        verdict, log_probs = self._verify(selection, drawn)
        clock.lap("verify")
        self._commit(verdict)
        self._broken = False
        clock.lap("commit")
        record = CycleRecord(
            draft_depth=tree.depth,
            verification_size=selection.verification_size,
            accepted_by_depth=verdict.accepted_by_depth,
            token_ids=tuple(verdict.emitted),
            context_length=context_length,
            seconds=clock.seconds(),
            log_probs=log_probs,
        )
        self._history.append(record)
        return record

    def _draft_levels(self, asked: Asked, limit: int, clock: PhaseClock) -> Generator[Question, int, None]:
        if limit <= 0:
            return
        said = yield asked.draft
        choice = said if type(said) is RootChoice else RootChoice(said)  # enum's own code is long
        clock.lap("policy")
        if choice == RootChoice.PLAIN:
            return
        self._draft.choose(choice)
        more, view = int(choice != RootChoice.LOOKUP), asked.level.view
        while more:
            extended = self._draft.extend()
            view.lookup = self._draft.hint()
            clock.lap("draft")
            if not extended or view.tree.depth >= limit:
                break
            more = yield asked.level
            clock.lap("policy")
        self._draft.finish(limit)
        clock.lap("draft")

    def _prefill(self) -> None:
        self._draft.ingest(self.committed[:1], None)
        if self.prompt_length > 1:
            output = self._target.forward(self.committed[:-1], self.cache, last_logits_only=True)
            self._draft.ingest(self.committed[1:], output.features_RF)

    def _verify(self, selection: Selection, drawn: Drawn | None) -> tuple[Verdict, tuple[float, ...]]:
        """Score the selection and accept from it."""
        output = self._target.forward(
            selection.tokens, self.cache, parents=selection.parents, depths=selection.depths
        )
        self._last_features = output.features_RF
        if self._draws is None or drawn is None:
            verdict = accept_coupled(selection, self._chosen(output, selection), self._ends)
        else:
            target_probs = self._target_probs(output, drawn.tokens)
            verdict = accept_rejection(drawn.tokens, drawn.probs, target_probs, self._draws, self._ends)
        if not self._wants_log_probs:
            return verdict, ()
        logits = output.logits_RV[torch.tensor(verdict.rows, device=output.logits_RV.device)]
        tokens = torch.tensor(verdict.emitted, device=logits.device)
        log_probs = logits.to(torch.float64).log_softmax(dim=-1).gather(1, tokens[:, None])
        return verdict, tuple(log_probs[:, 0].tolist())

    def _chosen(self, output: TargetOutput, selection: Selection) -> Callable[[int, int], int]:
        """The target's token after a row, as `accept_coupled` asks for it."""
        first = len(self.committed) - self.prompt_length
        logits = output.logits_RV
        if self._sampling.reads_context:
            # Processors are called as in plain decoding: once a token, in order, never off the path.
            context = list(self.committed)

            def choose(row: int, depth: int) -> int:
                (token,) = self.chooser.choose(logits[row : row + 1], [first + depth], [context])
                context.append(token)
                return token

            return choose
        if self._sampling.temperature == 0 or logits.device.type != "cpu":
            # One read-back for the whole tree; row by row would wait for the device at every accepted token.
            tokens = self.chooser.choose(
                logits, [first + depth for depth in selection.depths], best=output.best
            )
            return lambda row, depth: tokens[row]
        # On a CPU the noise of a row costs more than a read-back: draw it for the accepted rows alone.
        return lambda row, depth: self.chooser.choose(logits[row : row + 1], [first + depth])[0]

    def _target_probs(self, output: TargetOutput, drafted: list[int]) -> Callable[[int], torch.Tensor]:
        """The target's distribution after a row of the chain, as `accept_rejection` asks for it."""

        def target_probs(row: int) -> torch.Tensor:
            context = [*self.committed, *drafted[:row]]
            probs_V = token_probs(output.logits_RV[row], self._sampling, context)
            if probs_V is None:
                raise no_distribution(len(context) - self.prompt_length, self._sampling)
            return probs_V

        return target_probs

    def _ends(self, token: int) -> bool:
        # The stop strings read an end token as well: a caller's may be one that is text. Where it completes a
        # stop string, the text is cut and that is the reason.
        if self.stop is not None and self.stop.push(token):
            self.finish_reason = "stop_string"
        elif token in self._end_ids:
            self.finish_reason = "end_token"
        return self.finished

    def _commit(self, verdict: Verdict) -> None:
        base = len(self.committed) - 1
        self.cache.keep(base, verdict.rows, self._target.device)
        self._draft.ingest(verdict.emitted, self._last_features, verdict.rows)
        self._last_features = None
        self.committed.extend(verdict.emitted)
        if self.tokens_left <= 0 and not verdict.finished:
            self.finish_reason = "length"


def driven(cycle: Cycle, controller: Controller) -> CycleRecord:
    """The record of a cycle whose questions are put to `controller`."""
    reply: int | None = None
    while True:
        try:
            question = cycle.send(reply)  # type: ignore[arg-type] # None starts it
        except StopIteration as done:
            record: CycleRecord = done.value
            return record
        reply = answer(controller, question)


def check_rule(rule: str) -> None:
    """ValueError if it is no rule of verification."""
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}, must be one of {', '.join(RULES)}")


def check_prompt(prompt_ids: Sequence[int], target: TargetModel, max_new_tokens: int) -> None:
    """ValueError if a request cannot begin with these ids, or may emit nothing."""
    if not prompt_ids:
        raise ValueError("the prompt is empty: give at least one token")
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < target.vocabulary_size:
        raise ValueError(
            f"the prompt has a token id outside 0..{target.vocabulary_size - 1}: "
            f"its ids span {min(prompt_ids)}..{max(prompt_ids)}"
        )
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens!r}, must be a whole number >= 1")
    if len(prompt_ids) >= target.context_limit:
        raise ValueError(
            f"the prompt has {len(prompt_ids)} tokens, the model's context holds {target.context_limit} with "
            "at least one to generate: shorten the prompt"
        )
