"""Would a logistic scorer of a head's nodes be better than the calibrated softmax, and by what inputs?

On some prompts (kappa_d, a_d) and then logistic functions of more and more inputs are fitted, on others each
gives the nodes of the same trees new scores: what do these promise, and what has a draft accepted that is cut
by them? Expected and realised lengths are over positions after which the text goes on that far, ratios of
accepted tokens over all positions.

A node's inputs: log-odds of its calibrated survival; depth; rank among its siblings; margin, by which its
log survival is above that of the best other sibling; entropy of the draft's row after the root; last fate,
whether the head's best token after the root before was the text's. The last set adds the entropy of the
target's law that drew the root, which a session knows and a drafter does not.

Legend: N nodes, K inputs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_expit

from benchmarks.prompts import (
    Counted,
    count,
    encode,
    estimate,
    header,
    load_requests,
    measured,
    parser_of,
    publish,
    table,
    texts_of,
    tuning,
    warmth,
)
from configs.command import check_out, exit_code, progress
from decoding.calibration import Calibration, TemperatureFit
from decoding.decoder import default_drafter
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.load import load_drafter
from decoding.fit_calibration import Samples, fit, fit_logistic
from decoding.machine import use_threads
from decoding.models import LoadedModel, load_model
from decoding.noise import NoiseStream
from decoding.traces import Position, record_text
from decoding.tree import DraftTree
from decoding.workload import Request
from evaluation.reliability_table import SHOWN, look_at

STEPS = 6
INPUTS = (
    "one",
    "log_odds",
    "depth",
    "first",
    "rank",
    "best",
    "margin",
    "root_entropy",
    "fate",
    "target_entropy",
)
# Sets of inputs by the last one they hold, each with all before it.
SETS = {
    "log-odds, depth": "first",
    "and rank": "best",
    "and margin": "margin",
    "and root entropy": "root_entropy",
    "and last fate": "fate",
    "and the target's entropy": "target_entropy",
}
CALIBRATED = "calibrated"
_MOST_ODDS, _MOST_MARGIN = 12.0, 8.0


Weights = dict[str, np.ndarray]  # (K) by name of the set


@dataclass(frozen=True, slots=True)
class Recorded:
    """The positions of a request's text, drafted with the rows kept."""

    request: Request
    positions: list[Position]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = parser_of("head_scorer", __doc__, max_new_tokens=40)
    parser.add_argument("--drafter", help="a head or language model; default: what decoding uses")
    parser.add_argument("--beam-width", type=count, default=4)
    parser.add_argument("--fit", type=count, default=2, metavar="N", help="prompts a category to fit on")
    parser.add_argument("--temperatures", nargs="+", type=warmth, default=[0.0, 0.6, 1.0])
    return exit_code(lambda: run(parser.parse_args(given), given), "nothing was written")


def run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Fit and measure each temperature in turn; print and write the tables."""
    check_out(options.out)
    whole = load_requests(options.workload)
    requests = measured(whole, options.split, options.per_category)
    fitted_on = tuning(whole, options.split, requests, options.fit, "--fit")
    use_threads(options.threads)
    model = load_model(options.target, options.device, options.dtype)
    name = options.drafter or default_drafter(options.target)
    drafter = load_drafter(name, model, options.beam_width, calibrated=False)
    if not isinstance(drafter, EagleDrafter | CausalLMDrafter):
        raise ValueError(
            f"drafter {name} has no nodes of its own alone to score: name a head or a language model"
        )
    info = header(("head_scorer", arguments), options, model, [drafter], requests)
    tables: list[str] = []
    data: dict[str, Any] = {}
    for temperature in dict.fromkeys(options.temperatures):
        drafter.calibration = calibration_of(model, drafter, fitted_on, temperature, options)
        seen = recorded(model, drafter, fitted_on, temperature, options, "fitting")
        tests = recorded(model, drafter, requests, temperature, options, "measuring")
        weights = fit_sets(seen)
        lines, stated = measure(tests, weights)
        columns = ["scores", "error", "loss", *(f"{d}x{s} expected / realised" for d, s in SHOWN)]
        columns += [f"{d}x{s} over calibrated" for d, s in SHOWN]
        tables.append(table(f"Temperature {temperature:g}", columns, lines))
        data[str(temperature)] = stated | {"weights": {one: list(found) for one, found in weights.items()}}
    notes = [
        f"fitted on {len(fitted_on)} other prompts; beam {options.beam_width}, depth {STEPS}",
        "error, loss: of all nodes' path scores; accepted tokens at depth x size: expected and realised "
        "where the text goes on that far, over calibrated at all positions",
    ]
    publish("head_scorer", info, tables, notes, data, options.out)


def calibration_of(
    model: LoadedModel,
    drafter: Drafter,
    requests: Sequence[Request],
    temperature: float,
    options: argparse.Namespace,
) -> Calibration:
    """(kappa_d, a_d) at one temperature, of drafts without a calibration."""
    drafter.calibration = None
    samples = Samples()
    for one in recorded(model, drafter, requests, temperature, options, "calibrating"):
        samples.positions += len(one.positions)
        samples.rows += [row for position in one.positions for row in position.on_path]
    found = fit(samples, temperature)
    prints = {"target": model.target.fingerprint(), "drafter": drafter.fingerprint()}
    return Calibration((TemperatureFit(temperature, found.levels),), prints)


def recorded(
    model: LoadedModel,
    drafter: Drafter,
    requests: Sequence[Request],
    temperature: float,
    options: argparse.Namespace,
    what: str,
) -> list[Recorded]:
    """Plain texts of the requests, and the head's drafts at all of their positions."""
    prompts = encode(model, requests)
    texts = texts_of(model, prompts, temperature, options.seed, options.max_new_tokens)
    model.target.capture(drafter.fused_layers)
    found: list[Recorded] = []
    with progress(f"{what} at {temperature:g}") as show:
        for request, prompt, text in zip(requests, prompts, texts, strict=True):
            positions = record_text(
                model.target,
                drafter,
                prompt,
                text,
                draft_depth=STEPS,
                temperature=temperature,
                noise=NoiseStream(options.seed, prompt),
                keep_rows=True,
            )
            found.append(Recorded(request, list(positions)))
            show(len(found), len(requests), request.question_id)
    return found


# --- inputs -----------------------------------------------------------------------------------------------


def inputs_of(position: Position, fate: float) -> np.ndarray:
    """Inputs (N, K) of the drafted nodes, in the tree's order.

    Args:
        fate: whether the head's best token after the root before was the text's; .5 where there was none.
    """
    tree = position.tree
    log_c = [0.0, *(tree.scores[node] - tree.scores[tree.parents[node]] for node in range(1, tree.size + 1))]
    siblings: dict[int, list[int]] = {}
    for node in range(1, tree.size + 1):
        siblings.setdefault(tree.parents[node], []).append(node)
    root_entropy = position.on_path[0].entropy if position.on_path else 0.0
    drawn = 0.0 if math.isnan(position.root_entropy) else position.root_entropy
    inputs_NK = np.zeros((tree.size, len(INPUTS)))
    for children in siblings.values():
        ranked = sorted(children, key=lambda node: -log_c[node])
        for rank, node in enumerate(ranked):
            other = ranked[0] if rank else ranked[min(1, len(ranked) - 1)]
            margin = min(_MOST_MARGIN, max(-_MOST_MARGIN, log_c[node] - log_c[other]))
            depth = tree.depths[node]
            own = (1.0, log_odds(log_c[node]), depth / 4, depth == 1, rank / 4, rank == 0, margin)
            inputs_NK[node - 1] = (*own, root_entropy, fate, drawn)
    return inputs_NK


def log_odds(log_c: float) -> float:
    """log(c / (1 - c)), held to -12..12; 0 for a score that is no number."""
    if math.isnan(log_c):
        return 0.0
    rest = -math.expm1(min(log_c, 0.0))
    return _MOST_ODDS if rest <= 0 else min(_MOST_ODDS, max(-_MOST_ODDS, log_c - math.log(rest)))


def fates(positions: Sequence[Position]) -> list[float]:
    """Before each position: was the head's best token after the root before the text's?"""
    found = [0.5]
    for one in positions:
        row = one.on_path[0] if one.on_path else None
        found.append(float(row is not None and int(row.survival_V.argmax()) == row.column))
    return found[: len(positions)]


def fit_sets(seen: Sequence[Recorded]) -> Weights:
    """Weights of every set, fitted on the children of nodes that the text followed to."""
    inputs, hits = [], []
    for text in seen:
        for position, fate in zip(text.positions, fates(text.positions), strict=True):
            tree, path = position.tree, (0, *position.path)
            below = [
                n
                for n in range(1, tree.size + 1)
                if tree.parents[n] in path and tree.depths[n] <= len(position.following)
            ]
            inputs.append(inputs_of(position, fate)[np.array(below, dtype=int) - 1])
            hits += [node in path for node in below]
    inputs_NK, hits_N = np.concatenate(inputs), np.array(hits, dtype=float)
    weights: Weights = {}
    for name, last in SETS.items():
        held = INPUTS.index(last) + 1
        found = fit_logistic(inputs_NK[:, :held], hits_N)
        weights[name] = np.concatenate([found, np.zeros(len(INPUTS) - held)])
    return weights


def rescored(position: Position, fate: float, weights_K: np.ndarray) -> Position:
    """The position with the same nodes, their scores those of the logistic function."""
    tree = position.tree
    log_c_N = log_expit(inputs_of(position, fate) @ weights_K)
    again = DraftTree(tree.tokens[0])
    for depth in range(1, tree.height + 1):
        nodes = tree.level(depth)
        parents = [tree.parents[node] for node in nodes]
        scores = [
            again.scores[parent] + log_c_N[node - 1] for node, parent in zip(nodes, parents, strict=True)
        ]
        again.add_level([tree.tokens[node] for node in nodes], parents, scores)
    return replace(position, tree=again)


# --- result -----------------------------------------------------------------------------------------------


def measure(tests: Sequence[Recorded], weights: Weights) -> tuple[list[list[str]], dict[str, Any]]:
    """Lines of the table, calibrated scores first, and the data behind them."""
    counts: list[dict[str, float]] = [{} for _ in tests]
    looks = {}
    for name in (CALIBRATED, *weights):
        kept = []
        for text, counted in zip(tests, counts, strict=True):
            given = zip(text.positions, fates(text.positions), strict=True)
            found = [one if name == CALIBRATED else rescored(one, fate, weights[name]) for one, fate in given]
            for depth, size in SHOWN:
                counted[f"{name}: {depth}x{size}"] = sum(one.accepted(depth, size) for one in found)
            kept += found
        looks[name] = look_at(name, 0.0, kept)
    rows = [
        Counted(text.request.question_id, str(text.request.category), text.request.group, counted)
        for text, counted in zip(tests, counts, strict=True)
    ]
    lines = []
    for name, look in looks.items():
        shown = {
            (depth, size): f"{expected:.2f} / {realised:.2f}"
            for depth, size, expected, realised in look.lengths
        }
        ratios = [estimate(rows, [f"{name}: {d}x{s}"], [f"{CALIBRATED}: {d}x{s}"]) for d, s in SHOWN]
        cells = [shown.get(one, "-") for one in SHOWN]
        lines.append(
            [name, f"{look.nodes.error:.4f}", f"{look.nodes.log_loss:.4f}", *cells, *map(str, ratios)]
        )
    return lines, {
        "texts": [asdict(row) for row in rows],
        "looks": {n: one.to_json() for n, one in looks.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
