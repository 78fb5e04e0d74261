"""How good a drafter's drafts are, and what they cost, on prompts that nothing was trained on.

The texts are plain decoding's at temperature 0, the same for all drafters. On them:
- agreement by step d: after the text's own next d - 1 tokens, drafted as a chain, is the drafter's best token
  the text's? Ties go to the lowest id; nothing proposed is a miss. Beside it the share of the text's tokens
  that its vocabulary holds at all.
- tau: what a session of a fixed depth and size would emit a cycle, replayed on a trace of the text.
- milliseconds from `begin` to the first level, what the last cycle emitted taken in, and of a later level.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from benchmarks.prompts import (
    ALL,
    Counted,
    by_category,
    encode,
    estimate,
    header,
    load_requests,
    measured,
    parser_of,
    publish,
    table,
    texts_of,
)
from configs.command import check_out, exit_code, progress
from decoding.controller import MAX_VERIFICATION_SIZE, RootChoice
from decoding.decoder import default_drafter
from decoding.drafters.base import Drafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.load import load_drafter
from decoding.machine import use_threads
from decoding.models import load_model
from decoding.noise import NoiseStream
from decoding.target import TargetModel
from decoding.timing import now
from decoding.traces import Position, record_text

STEPS = 6
DEPTHS = range(1, STEPS + 1)
SIZES = {"all nodes": MAX_VERIFICATION_SIZE, "16 nodes": 16}
SIZE = 16  # of tau by depth

Beams = dict[int, Drafter]  # one drafter by beam width, the first one's drafts are timed
Milliseconds = dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = parser_of("draft_quality", __doc__, max_new_tokens=64)
    parser.add_argument("--drafter", action="append", help="may be given several times; default: decoding's")
    parser.add_argument("--beam-width", nargs="+", type=int, default=[4, 8], help="the first one is timed")
    return exit_code(lambda: run(parser.parse_args(given), given), "nothing was written")


def run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Measure text by text, every drafter in turn; print and write the tables."""
    check_out(options.out)
    requests = measured(load_requests(options.workload), options.split, options.per_category)
    use_threads(options.threads)
    model = load_model(options.target, options.device, options.dtype)
    names = list(dict.fromkeys(options.drafter or [default_drafter(options.target)]))
    widths = list(dict.fromkeys(options.beam_width))
    drafters = {name: {width: load_drafter(name, model, width) for width in widths} for name in names}
    prompts = encode(model, requests)
    firsts = [beams[widths[0]] for beams in drafters.values()]
    head = header(("draft_quality", arguments), options, model, firsts, requests)
    texts = texts_of(model, prompts, 0.0, options.seed, options.max_new_tokens)
    rows: list[Counted] = []
    times: dict[str, Milliseconds] = {name: {"first": [], "level": []} for name in names}
    with progress("texts") as show:
        for request, prompt, text in zip(requests, prompts, texts, strict=True):
            limit = min(options.max_new_tokens, model.target.context_limit - len(prompt))
            counts: dict[str, float] = {"emitted": len(text)}
            for name, beams in drafters.items():
                found, trace = count_text(model.target, beams, prompt, text, limit)
                counts |= {f"{name}: {what}": count for what, count in found.items()}
                timed = partial(draft_times, model.target, beams[widths[0]], prompt, text, trace)
                if not rows:
                    timed()  # warms every shape
                for what, spent in timed().items():
                    times[name][what] += spent
            rows.append(Counted(request.question_id, str(request.category), request.group, counts))
            show(len(rows), len(requests), request.question_id)
    settings = [f"{width} x {size}" for width in widths for size in SIZES]
    tables = [agreement_table(rows, names), tau_table(rows, names, settings)]
    tables += [ratio_table(rows, names, settings)] if len(names) > 1 else []
    tables += [depth_table(rows, times[name], name, widths[0]) for name in names]
    data = {"texts": [asdict(row) for row in rows], "milliseconds": times}
    publish("draft_quality", head, tables, [], data, options.out)


def count_text(
    target: TargetModel, beams: Beams, prompt: Sequence[int], text: Sequence[int], limit: int
) -> tuple[dict[str, float], Trace]:
    """Counts on one text that might have had `limit` tokens: `right d` of `asked d` and `cycles depth d` of
    the first beam, `cycles W x SIZE` at full depth, `known` tokens. With the first beam's trace."""
    first = next(iter(beams.values()))
    right, asked = agreement(target, first, prompt, text)
    traces = recorded(target, first, prompt, text, DEPTHS)
    counts: dict[str, float] = {"known": len(text)}
    if isinstance(first, EagleDrafter):
        counts["known"] = int(torch.isin(torch.tensor(text), first.target_ids_V.cpu()).sum())
    for depth, trace in traces.items():
        counts[f"right {depth}"], counts[f"asked {depth}"] = right[depth - 1], asked[depth - 1]
        counts[f"cycles depth {depth}"] = len(list(trace.cycles(limit, SIZE)))
    for width, drafter in beams.items():
        whole = traces if drafter is first else recorded(target, drafter, prompt, text, [STEPS])
        for name, size in SIZES.items():
            counts[f"cycles {width} x {name}"] = len(list(whole[STEPS].cycles(limit, size)))
    return counts, traces[STEPS]


class _Reader:
    """A drafter's state that reads a known text, a chunk at a time."""

    def __init__(
        self, target: TargetModel, drafter: Drafter, prompt: Sequence[int], text: Sequence[int]
    ) -> None:
        self.tokens = [*prompt, *text]
        self.state = drafter.start(NoiseStream(0, prompt), 0.0, len(prompt))
        self.state.ingest(self.tokens[:1], None)
        self._done = 1
        self._features_RF = None
        target.capture(drafter.fused_layers)
        if drafter.fused_layers:
            output = target.forward(self.tokens[:-1], target.new_cache(), last_logits_only=True)
            self._features_RF = output.features_RF

    def read(self, end: int) -> None:
        """Take in the tokens up to index `end`."""
        start, self._done = self._done, end
        features = None if self._features_RF is None else self._features_RF[start - 1 : end - 1]
        self.state.ingest(self.tokens[start:end], features)


def agreement(
    target: TargetModel, drafter: Drafter, prompt: Sequence[int], text: Sequence[int]
) -> tuple[list[int], list[int]]:
    """(right, asked) by step: how often the drafter's best token was the text's, of how many tokens."""
    right, asked = [0] * STEPS, [0] * STEPS
    reader = _Reader(target, drafter, prompt, text)
    for place in range(len(prompt), len(reader.tokens)):
        reader.read(place)
        reader.state.begin()
        following = reader.tokens[place : place + STEPS]
        for step in range(len(following)):
            asked[step] += 1
        for step, token in enumerate(following):
            logits_V = reader.state.next_logits()
            if logits_V is None:
                break
            right[step] += int(logits_V.argmax()) == token
            reader.state.append(token, 0.0)
    return right, asked


@dataclass(frozen=True, slots=True)
class ReplayedCycle:
    """A cycle of a fixed setting at the text's token number `index`."""

    index: int
    accepted: int
    emitted: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded text, read at one depth."""

    positions: Sequence[Position]
    draft_depth: int

    def cycles(self, limit: int, verification_size: int) -> Iterator[ReplayedCycle]:
        """The cycles of a session of this depth and size that may emit `limit` tokens."""
        index = 0
        while index < len(self.positions):
            here = self.positions[index]
            # As the session does: nothing is drafted that could not be emitted.
            accepted = here.accepted(self.draft_depth, verification_size, limit - index - 1)
            emitted = min(accepted + 1, len(self.positions) - index)
            yield ReplayedCycle(index, accepted, emitted)
            index += emitted


def recorded(
    target: TargetModel,
    drafter: Drafter,
    prompt: Sequence[int],
    text: Sequence[int],
    depths: Sequence[int],
    temperature: float = 0.0,
    noise: NoiseStream | None = None,
) -> dict[int, Trace]:
    """Traces of a text by draft depth; one recording serves all."""
    target.capture(drafter.fused_layers)
    noise = NoiseStream(0, prompt) if noise is None else noise
    positions = list(
        record_text(
            target, drafter, prompt, text, draft_depth=max(depths), temperature=temperature, noise=noise
        )
    )
    return {depth: Trace(positions, depth) for depth in depths}


def draft_times(
    target: TargetModel, drafter: Drafter, prompt: Sequence[int], text: Sequence[int], trace: Trace
) -> Milliseconds:
    """Of drafts along the text, a cycle of its trace apart: `first` and every later `level`."""
    reader = _Reader(target, drafter, prompt, text)
    times: Milliseconds = {"first": [], "level": []}
    for number, cycle in enumerate(trace.cycles(len(text), SIZE)):
        reader.read(len(prompt) + cycle.index)
        marks = [now(target.device)]
        reader.state.begin()
        reader.state.choose(RootChoice.ALL)
        while len(marks) <= STEPS and reader.state.extend():
            marks.append(now(target.device))
        spent = [(after - before) * 1e3 for before, after in pairwise(marks)]
        if number:  # the first draft takes in the whole prompt
            times["first"] += spent[:1]
            times["level"] += spent[1:]
    return times


def agreement_table(rows: Sequence[Counted], names: Sequence[str]) -> str:
    """Share of right first choices by step; intervals for all prompts alone, which keeps it readable."""
    lines = []
    for category, here in by_category(rows).items():
        for name in names:
            cells = [str(estimate(here, [f"{name}: known"], ["emitted"]))]
            cells += [str(estimate(here, [f"{name}: right {d}"], [f"{name}: asked {d}"])) for d in DEPTHS]
            shown = cells if category == ALL else [cell.split(" ")[0] for cell in cells]
            lines.append([category, name, str(len(here)), *shown])
    columns = ["category", "drafter", "prompts", "in vocabulary", *(f"step {d}" for d in DEPTHS)]
    return table("Top-1 agreement by draft step", columns, lines)


def tau_table(rows: Sequence[Counted], names: Sequence[str], settings: Sequence[str]) -> str:
    """Tokens emitted a cycle."""
    lines = []
    for category, here in by_category(rows).items():
        for name in names:
            taus = [estimate(here, ["emitted"], [f"{name}: cycles {one}"]) for one in settings]
            lines.append([category, name, str(len(here)), *map(str, taus)])
    columns = ["category", "drafter", "prompts", *(f"beam {one}" for one in settings)]
    return table(f"tau at depth {STEPS}, replayed", columns, lines)


def ratio_table(rows: Sequence[Counted], names: Sequence[str], settings: Sequence[str]) -> str:
    """tau over the first drafter's; on the same texts that is its cycles over the other's."""
    base, lines = names[0], []
    for category, here in by_category(rows).items():
        for name in names[1:]:
            pairs = [([f"{base}: cycles {one}"], [f"{name}: cycles {one}"]) for one in settings]
            lines.append([category, name, str(len(here)), *(str(estimate(here, *pair)) for pair in pairs)])
    columns = ["category", "drafter", "prompts", *(f"beam {one}" for one in settings)]
    return table(f"tau over that of {base}", columns, lines)


def depth_table(rows: Sequence[Counted], times: Milliseconds, name: str, width: int) -> str:
    """tau by depth beside the milliseconds of the draft, all prompts."""
    # Too short a text has no second draft to time.
    quartiles = {what: np.percentile(spent or [np.nan], [25, 50, 75]) for what, spent in times.items()}
    lines, whole = [], 0.0
    for depth in DEPTHS:
        tau = estimate(rows, ["emitted"], [f"{name}: cycles depth {depth}"])
        low, median, high = quartiles["first" if depth == 1 else "level"]
        whole += median
        per_ms = ((tau.value or 1) - 1) / whole
        level = f"{median:.2f} ({low:.2f}..{high:.2f})"
        lines.append([str(depth), str(tau), level, f"{whole:.2f}", f"{per_ms:.3f}"])
    columns = ["depth", "tau", "ms of this level (quartiles)", "ms of the draft", "(tau - 1) / ms"]
    return table(f"{name} by depth: beam {width}, {SIZE} nodes, all prompts", columns, lines)


if __name__ == "__main__":
    sys.exit(main())
