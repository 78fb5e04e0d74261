"""Our plain decoding against transformers' own `generate`: the same prompts, greedy, in one process.

Both get the same token ids and write the same number of new tokens. End tokens are switched off on both sides
(`eos_token_id=None` there, no end ids here): `min_new_tokens` would do it by a logits processor, which costs
transformers time and changes its text. Seconds are those of the whole request, prefill included, over the
new tokens. transformers' model is loaded a second time: ours has had its linear layers exchanged.

Arms take turns in random order, prompt by prompt, after a round that is not counted. A prompt gives one
ratio: what is printed is their median, with a 95 % bootstrap percentile interval over prompts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measure import ratio_with_interval
from benchmarks.prompts import WORKLOAD, Parser, count, encode
from configs.command import exit_code
from decoding.artifacts import write_json
from decoding.controller import PlainController
from decoding.drafters.base import Drafter
from decoding.drafters.load import load_drafter
from decoding.machine import use_threads
from decoding.models import LoadedModel, load_model
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.timing import now
from decoding.workload import load_workload, select

FEWEST_PROMPTS = 3
OURS = "plain"
# transformers compiles by itself only on CUDA, and needs a while for it: that would be another rival.
STATIC = {"cache_implementation": "static", "disable_compile": True}

Arm = Callable[[list[int], int], list[int]]  # prompt ids, new tokens -> new ids
Samples = dict[str, list[float]]  # arm -> seconds of each prompt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    parser = Parser(prog="python -m benchmarks.generate", description=__doc__, allow_abbrev=False)
    parser.add_argument("--workload", nargs="+", type=Path, default=list(WORKLOAD), help="JSONL")
    parser.add_argument("--prompts", type=count, default=6, help="so many of the workload's test split")
    parser.add_argument("--new-tokens", type=count, default=32)
    parser.add_argument("--static", action="store_true", help="also transformers with a static cache")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", default="ngram", help="kept up to date, never asked; default: ngram")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--path", default="auto", help="of ours: auto, fast or eager")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    return exit_code(lambda: run(parser.parse_args(arguments)), "nothing was written")


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    if options.prompts < FEWEST_PROMPTS:
        raise ValueError(f"--prompts is {options.prompts}, must be >= {FEWEST_PROMPTS}")
    requests = select(load_workload(options.workload), "test", limit=options.prompts)
    threads = use_threads(options.threads)
    model = load_model(options.target, options.device, options.dtype, options.path)
    drafter = load_drafter(options.drafter, model)
    prompts = encode(model, requests)
    limit = model.target.context_limit
    if (longest := max(map(len, prompts))) + options.new_tokens > limit:
        raise ValueError(f"--new-tokens {options.new_tokens} after {longest} exceed the context, {limit}")
    arms = arms_of(model, drafter, untouched(options.target, model), options.static)
    seconds, texts = measure(arms, prompts, options.new_tokens, model.target.device)
    console = Console()
    dtype = str(model.target.dtype).removeprefix("torch.")
    path = "eager" if model.target.fast is None else "fast"
    console.print(f"{model.name}, {model.target.device}, {dtype}, {path} path, {threads} threads")
    title = f"{len(prompts)} prompts, {options.new_tokens} new tokens each, prefill included"
    console.print(table(title, seconds, texts, options.new_tokens))
    if options.json:
        ids = [request.question_id for request in requests]
        result = {"prompts": ids, "new_tokens": options.new_tokens, "seconds": seconds, "token_ids": texts}
        write_json(options.json, result)


def untouched(name: str, model: LoadedModel) -> Any:
    """transformers' own model of the same weights, device and dtype."""
    from transformers import AutoModelForCausalLM

    from decoding.models import _source

    source, given = _source(name)
    theirs = AutoModelForCausalLM.from_pretrained(source, dtype=model.target.dtype, **given)
    return theirs.to(model.target.device).eval()


def arms_of(model: LoadedModel, drafter: Drafter, theirs: Any, static: bool) -> dict[str, Arm]:
    """All that is measured; the first is ours, and what the others are compared with."""
    target = model.target

    def ours(prompt: list[int], tokens: int) -> list[int]:
        session = Session(
            target, drafter, prompt, max_new_tokens=tokens, end_ids=(), sampling=Sampling(), seed=0
        )
        for _ in session.run(PlainController()):
            pass
        return session.generated

    arms: dict[str, Arm] = {OURS: ours, "transformers": _generate(theirs, {})}
    if static:
        arms["transformers, static cache"] = _generate(theirs, STATIC)
    return arms


def _generate(theirs: Any, settings: Mapping[str, Any]) -> Arm:
    def generate(prompt: list[int], tokens: int) -> list[int]:
        # A static cache is made as long as the longest yet, so that nothing is compiled again. Nothing is
        # compiled here, and the shorter one is the faster.
        theirs._previous_max_cache_length = -1
        ids = torch.tensor([prompt], device=theirs.device)
        given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": tokens, "eos_token_id": None}
        found = theirs.generate(ids, do_sample=False, use_cache=True, **given, **settings)
        new: list[int] = found[0, len(prompt) :].tolist()
        return new

    return generate


def measure(
    arms: Mapping[str, Arm], prompts: Sequence[list[int]], tokens: int, device: torch.device
) -> tuple[Samples, dict[str, list[list[int]]]]:
    """Seconds and new ids of every prompt, by arm. ValueError if an arm wrote more or fewer tokens."""
    rng = np.random.default_rng(0)
    seconds: Samples = {}
    texts: dict[str, list[list[int]]] = {}
    for _ in range(2):  # the first round warms every shape, and is written over
        seconds, texts = {name: [] for name in arms}, {name: [] for name in arms}
        for prompt in prompts:
            for name in rng.permutation(list(arms)):
                started = now(device)
                new = arms[name](prompt, tokens)
                seconds[name].append(now(device) - started)
                texts[name].append(new)
                if len(new) != tokens:
                    raise ValueError(f"{name} wrote {len(new)} tokens, not {tokens}")
    return seconds, texts


def table(title: str, seconds: Samples, texts: Mapping[str, Sequence[list[int]]], tokens: int) -> Table:
    """A row an arm: its seconds, their ratio to ours, and on how many prompts its ids are ours."""
    lines = Table(title=title)
    for column in ("", "ms a token", f"over {OURS}", "95 % interval", "same token ids"):
        lines.add_column(column, justify="right" if column else "left")
    ours = seconds[OURS]
    for name, values in seconds.items():
        ratios = [a / b for a, b in zip(values, ours, strict=True)]
        ratio, low, high = ratio_with_interval(ratios, [1.0] * len(ratios))
        same = sum(a == b for a, b in zip(texts[name], texts[OURS], strict=True))
        against = ["", ""] if name == OURS else [f"{ratio:.2f}", f"{low:.2f} .. {high:.2f}"]
        lines.add_row(name, f"{np.median(values) / tokens * 1e3:.1f}", *against, f"{same} of {len(ratios)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
