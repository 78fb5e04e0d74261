"""Traces of the built-in model against its live cycles: 2,000 of them, drawn at random, equal one by one."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import numpy as np
import pytest

from decoding.controller import DraftView, RootChoice
from decoding.decoder import SpeculativeDecoder
from decoding.recording import Prompt, Recorded, Recording, record
from decoding.sampling import Sampling

CYCLES = 250  # of each drafter at each temperature
DEPTH, TOKENS, SEED = 6, 64, 11
DRAFTERS = ("smollm2-135m-eagle3", "ngram", "composite", "merged")
PROMPTS = (
    "List the months of the year, each with its number of days.",
    "Why do leaves change colour in autumn?",
    "Write a Python function that reverses a string, then one that reverses a list.",
    "Repeat these words three times: river, stone, cloud, river, stone, cloud.",
    "Write a short letter to a neighbour who plays loud music at night.",
    "Scrivi alcune frasi sul mare d'inverno.",
)

pytestmark = pytest.mark.slow


class AtRandom:
    """Answers at random; `choice`, `depth` and `size` are this cycle's."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def wants_draft(self, view: DraftView) -> RootChoice:
        self.depth, self.size = int(self._rng.integers(1, DEPTH + 1)), int(self._rng.integers(1, 24))
        self.choice = RootChoice(self._rng.choice(view.root_choices, p=_weights(len(view.root_choices))))
        return self.choice

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < self.depth

    def verification_size(self, view: DraftView) -> int:
        return self.size


def _weights(choices: int) -> list[float]:
    """Few plain steps: they say nothing."""
    return [0.1, *[0.9 / (choices - 1)] * (choices - 1)]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_live_cycles_are_those_of_the_trace(name: str, temperature: float) -> None:
    """In fp32. On the fast path there are no ties to class: bits are equal."""
    decoder = SpeculativeDecoder.from_pretrained("smollm2-135m", name, dtype="float32")
    choices = tuple(RootChoice)[1:] if name == "merged" else (RootChoice.ALL,)
    recording = Recording(Sampling(temperature), SEED, TOKENS, DEPTH, choices, batch=6)
    prompts = [
        Prompt(str(number), tuple(decoder.encode(decoder.as_user(prompt))))
        for number, prompt in enumerate(PROMPTS)
    ]
    traces = list(record(decoder.target, decoder.drafter, decoder.model.end_ids, prompts, recording))
    rng, accepted = np.random.default_rng(SEED), Counter[int]()
    for trace in cycle(traces):
        accepted.update(compared(decoder, trace, recording, AtRandom(rng)))
        if accepted.total() >= CYCLES:
            break
    assert accepted.total() - accepted[0] > CYCLES / 100, "drafts that are never right compare nothing"


def compared(
    decoder: SpeculativeDecoder, trace: Recorded, recording: Recording, controller: AtRandom
) -> list[int]:
    """Decode the text live, compare each cycle with the trace; what they accepted."""
    drafts = {(one.context_length, one.choice): one for one in trace.positions}
    session = decoder.open_session(
        list(trace.prompt.token_ids),
        max_new_tokens=recording.max_new_tokens,
        temperature=recording.sampling.temperature,
        seed=recording.seed,
    )
    left, counts = session.tokens_left, []
    for live in session.run(controller):
        limit = left - 1
        if controller.choice == RootChoice.PLAIN or limit <= 0:
            expected = (0, 0, 0)
        else:
            here = drafts[live.context_length, controller.choice]
            tree = here.tree_at(controller.depth, limit)
            accepted = here.accepted(controller.depth, controller.size, limit)
            expected = (tree.depth, min(controller.size, tree.size), accepted)
        assert (live.draft_depth, live.verification_size, live.accepted) == expected, live
        left -= live.emitted
        counts.append(live.accepted)
    assert session.generated == trace.text_ids
    return counts
