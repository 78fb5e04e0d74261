"""What n-gram lookup, a head, and the two together gain over plain decoding, live, by category.

`--choose` decodes other prompts with a small grid of fixed settings for each drafter and writes the best of
each, by tokens/s, to OUT/choice.json. Without it the chosen settings and plain decoding decode the measured
prompts, interleaved, at temperature 0. Tokens/s over plain are geometric means over questions.

Small models fall into repetition, where a lookup is always right. So everything is stated a second time
without the loops: of every text only cycles count that begin before its loop does, in all arms alike.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.prompts import (
    ALL,
    Estimate,
    encode,
    header,
    load_requests,
    measured,
    parser_of,
    publish,
    table,
    tuning,
)
from configs.command import check_out, exit_code, progress
from decoding.artifacts import atomic_path, read_json
from decoding.controller import FixedController, PlainController
from decoding.decoder import SpeculativeDecoder, default_drafter
from decoding.drafters.base import Drafter
from decoding.drafters.load import load_drafter
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.machine import use_threads
from decoding.metrics import CycleSummary, merge, summarise
from decoding.models import LoadedModel, load_model
from decoding.repetition import loop_cut
from decoding.session import Session
from decoding.workload import Request
from evaluation.block_store import record_of
from evaluation.protocol import Arm, FixedSetting, Observation, OpenSession, run_arms
from evaluation.report import CYCLES
from evaluation.statistics import compare

Setting = tuple[int, int]  # draft depth (of a merged drafter: the head's levels), verification size
Raw = list[dict[str, Any]]

PLAIN = "plain"
GRIDS: dict[str, list[Setting]] = {
    "n-gram": list(product((3, 6, 10), (4, 8))),
    "head": [(1, 4), (2, 4), (2, 8), (4, 8)],
    "composite": list(product((2, 4, 6), (4, 8))),
    "merged": list(product((1, 2, 3), (4, 8, 12))),
}
CHOICE = "choice"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = parser_of("drafts", __doc__, max_new_tokens=64)
    parser.add_argument("--head", help="default: the head shipped for the target")
    parser.add_argument("--beam-width", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=1, help="times each arm decodes each prompt")
    parser.add_argument("--choose", nargs="?", type=int, const=2, metavar="N", help="on N prompts a category")
    parser.add_argument("--settings", type=Path, help=f"what --choose wrote; default: OUT/{CHOICE}.json")
    return exit_code(lambda: run(parser.parse_args(given), given), "nothing was written")


def run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Choose settings, or measure those that were chosen."""
    if options.out is None:
        raise ValueError("--out is missing: name a folder for the chosen settings and the result")
    check_out(options.out)
    whole = load_requests(options.workload)
    requests = measured(whole, options.split, options.per_category)
    head = options.head or default_drafter(options.target)
    if options.choose is None:
        path = options.settings or options.out / f"{CHOICE}.json"
        settings = {name: [one] for name, one in read_choice(path, head, requests).items()}
    else:
        requests, settings = tuning(whole, options.split, requests, options.choose), GRIDS
    use_threads(options.threads)
    model = load_model(options.target, options.device, options.dtype)
    drafters = load_drafters(model, head, options.beam_width)
    encode(model, requests)  # refuses what does not fit the context before minutes were spent
    info = header(("drafts", arguments), options, model, list(drafters.values()), requests) | {"head": head}
    open_with = partial(open_session, model, options.max_new_tokens, options.seed)
    arms = arms_of(drafters, settings, open_with)
    raw: Raw = []
    with progress("decoding") as show:
        observations = run_arms(
            arms,
            requests,
            partial(open_with, NgramDrafter()),
            options.repeats,
            np.random.default_rng([options.seed, 1]),
            lambda done, total, one: show(done, total, one.arm),
            raw,
        )
    notes = [f"load while decoding: at most {max(row.load for row in observations):.1f}"]
    if options.choose is not None:
        publish(CHOICE, info, *choice(arms, observations, notes), options.out)
        return
    with atomic_path(options.out / "cycles.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(raw, schema=CYCLES), temporary, compression="zstd")
    tables, more, data = result(observations, raw, list(settings))
    notes += [
        "depth x size: " + ", ".join(f"{kind} {one[0][0]}x{one[0][1]}" for kind, one in settings.items())
    ]
    publish("drafts", info, tables, notes + more, data | {"settings": settings}, options.out)


# --- arms and settings ------------------------------------------------------------------------------------


def load_drafters(model: LoadedModel, head: str, beam_width: int) -> dict[str, Drafter]:
    """One of each kind, all with the head's calibration."""
    names = {"n-gram": "ngram", "head": head, "composite": f"composite:{head}", "merged": f"merged:{head}"}
    drafters = {kind: load_drafter(name, model, beam_width) for kind, name in names.items()}
    # By itself a lookup takes that of the shipped head; beside another head it would be another lookup.
    drafters["n-gram"].calibration = drafters["head"].calibration
    return drafters


def open_session(
    model: LoadedModel, max_new_tokens: int, seed: int, drafter: Drafter, request: Request
) -> Session:
    """A request, with the layers captured that this drafter reads: no other arm shall pay for them."""
    model.target.capture(drafter.fused_layers)
    decoder = SpeculativeDecoder(model, drafter)
    return decoder.open_session(decoder.as_user(request.turns[0]), max_new_tokens=max_new_tokens, seed=seed)


def arms_of(drafters: dict[str, Drafter], settings: dict[str, list[Setting]], open_with: Any) -> list[Arm]:
    """Plain decoding, then every setting of every drafter; one setting alone has its drafter's name."""
    arms = [Arm(PLAIN, PlainController, "plain")]
    for kind, drafter in drafters.items():
        lookup_depth = drafter.lookup_depth if isinstance(drafter, MergedDrafter) else None
        opened: OpenSession = partial(open_with, drafter)
        for depth, size in settings[kind]:
            name = kind if len(settings[kind]) == 1 else f"{kind} {depth}x{size}"
            factory = partial(FixedController, depth, size)
            arms.append(Arm(name, factory, "fixed", FixedSetting(kind, depth, size, lookup_depth), opened))
    return arms


def choice(
    arms: Sequence[Arm], observations: Sequence[Observation], notes: list[str]
) -> tuple[list[str], list[str], dict[str, Any]]:
    """Tables, notes and data of all settings' tokens/s, with the best of each drafter."""
    cycles = {arm.name: merge(row.cycles for row in observations if row.arm == arm.name) for arm in arms}
    lines: list[list[str]] = []
    best: dict[str, dict[str, Any]] = {}
    plain = cycles[PLAIN].tokens_per_second
    for arm in arms:
        speed = cycles[arm.name].tokens_per_second
        tau = cycles[arm.name].acceptance_length
        lines.append([arm.name, f"{speed:.1f}", f"{speed / plain:.2f}", f"{tau:.2f}"])
        known = best.get(arm.setting.drafter, {"tokens_per_second": 0}) if arm.setting else {}
        if arm.setting and speed > known["tokens_per_second"]:
            best[arm.setting.drafter] = asdict(arm.setting) | {"tokens_per_second": speed}
    shapes = {kind: f"{one['draft_depth']}x{one['verification_size']}" for kind, one in best.items()}
    data = {
        "settings": best,
        "questions": sorted({row.question_id for row in observations}),
        "groups": sorted({row.group for row in observations}),
        "tokens_per_second": {name: one.tokens_per_second for name, one in cycles.items()},
    }
    rows = table("Settings tried", ["depth x size", "tokens/s", "over plain", "tau"], lines)
    return [rows], [*notes, "best of each: " + ", ".join(map(" ".join, shapes.items()))], data


def read_choice(path: Path, head: str, requests: Sequence[Request]) -> dict[str, Setting]:
    """The best setting of each drafter; refused if chosen for another head, or on what is measured."""
    if not path.exists():
        raise ValueError(f"chosen settings {path} do not exist: run with --choose first")
    data = read_json(path, "chosen settings")
    try:
        other, groups = data["header"]["head"], set(data["groups"])
        settings = {
            kind: (data["settings"][kind]["draft_depth"], data["settings"][kind]["verification_size"])
            for kind in GRIDS
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"chosen settings {path} lack {error}: run with --choose again") from None
    if other != head:
        raise ValueError(f"the settings in {path} were chosen for {other}, not {head}: run with --choose")
    both = sorted(groups & {one.group for one in requests})
    if both:
        raise ValueError(f"the settings in {path} were chosen on question {both[0]!r}, which is measured too")
    return settings


# --- loops ------------------------------------------------------------------------------------------------


def texts(raw: Raw) -> dict[tuple[str, str, int], Raw]:
    """The cycles of each text, in order, by (arm, question, repeat)."""
    found: dict[tuple[str, str, int], Raw] = defaultdict(list)
    for row in raw:
        found[row["arm"], row["question_id"], row["repeat"]].append(row)
    return {key: sorted(rows, key=lambda row: row["cycle"]) for key, rows in found.items()}


def loop_start(cycles: Raw) -> int | None:
    """How many tokens of a text come before its loop; None where it has none."""
    return loop_cut([token for row in cycles for token in row["token_ids"]])


def without_loops(observations: Sequence[Observation], raw: Raw) -> list[Observation]:
    """The same, of cycles alone that begin before the loop of their own text."""
    cycles_of = texts(raw)
    kept: list[Observation] = []
    for row in observations:
        cycles = cycles_of[row.arm, row.question_id, row.repeat]
        start, begun, before = loop_start(cycles), 0, []
        for cycle in cycles:
            if start is None or begun < start:
                before.append(record_of(cycle))
            begun += cycle["emitted"]
        kept.append(replace(row, cycles=summarise(before)))
    return kept


def loops(raw: Raw, category: str) -> dict[str, int]:
    """How much of what plain decoding wrote is in loops."""
    found = {"texts": 0, "looping texts": 0, "tokens": 0, "looped tokens": 0}
    for (arm, _, _), cycles in texts(raw).items():
        if arm == PLAIN and category in (ALL, cycles[0]["category"]):
            length, start = sum(row["emitted"] for row in cycles), loop_start(cycles)
            found["texts"] += 1
            found["tokens"] += length
            if start is not None:
                found["looping texts"] += 1
                found["looped tokens"] += length - start
    return found


# --- result -----------------------------------------------------------------------------------------------

Ratios = dict[str, dict[str, Estimate]]  # tokens/s over plain decoding's, by category and arm


def result(
    observations: Sequence[Observation], raw: Raw, arms: Sequence[str]
) -> tuple[list[str], list[str], dict[str, Any]]:
    """Tables, notes and data: speed, tau and loops by category; which texts differ; what of a gain is loops.

    Args:
        arms: names, in order, plain decoding left out.
    """
    both = {"with loops": observations, "without loops": without_loops(observations, raw)}
    shares = {name: loops(raw, name) for name in _categories(observations)}
    ratios = {what: _ratios(rows, arms) for what, rows in both.items()}
    tables = [
        table(
            f"Tokens/s over plain, {what}",
            ["category", "texts", "plain tokens/s", *arms],
            [
                [name, str(shares[name]["texts"]), f"{_cycles(rows, name, PLAIN).tokens_per_second:.1f}"]
                + [str(ratios[what][name][arm]) for arm in arms]
                for name in shares
            ],
        )
        for what, rows in both.items()
    ]
    lines = []
    for name, found in shares.items():
        parts = (found["looping texts"] / found["texts"], found["looped tokens"] / found["tokens"])
        taus = ([_cycles(rows, name, arm).acceptance_length for rows in both.values()] for arm in arms)
        lines.append(
            [name, *map("{:.0%}".format, parts), *("{:.2f} / {:.2f}".format(*pair) for pair in taus)]
        )
    columns = ["category", "texts in loops", "tokens in loops", *(f"tau {arm}" for arm in arms)]
    tables.append(table("Loops, and tau with / without them", columns, lines))
    differ = differing(observations, arms)
    told = ", ".join(f"{arm} {count}" for arm, count in differ.items())
    notes = [f"texts that differ from plain decoding's (ties): {told}"]
    notes += [gain(arm, *(ratios[what][ALL][arm].value or 0.0 for what in both)) for arm in arms]
    notes += [f"{arm} over {arms[0]}: {_over(arm, arms[0], observations)}" for arm in arms[1:]]
    stated = {
        what: {name: {arm: asdict(one) for arm, one in row.items()} for name, row in rows.items()}
        for what, rows in ratios.items()
    }
    return tables, notes, {"ratios": stated, "loops": shares, "texts_differ": differ}


def _categories(observations: Sequence[Observation]) -> list[str]:
    return [*sorted({str(row.category) for row in observations}), ALL]


def _cycles(observations: Sequence[Observation], category: str, arm: str) -> CycleSummary:
    return merge(row.cycles for row in observations if row.arm == arm and category in (ALL, row.category))


def _ratios(observations: Sequence[Observation], arms: Sequence[str]) -> Ratios:
    ratios: Ratios = {}
    for name in _categories(observations):
        here = [row for row in observations if name in (ALL, row.category)]
        ratios[name] = {arm: _over(arm, PLAIN, here) for arm in arms}
    return ratios


def _over(arm: str, base: str, observations: Sequence[Observation]) -> Estimate:
    one = compare(arm, base, observations, np.random.default_rng(2))
    return Estimate(one.ratio, one.low, one.high)


def gain(arm: str, looped: float, free: float) -> str:
    """What share of an arm's gain is loops, from its ratios with and without them."""
    said = f"{arm}: {looped:.2f} with loops, {free:.2f} without"
    return f"{said}: loops are {1 - (free - 1) / (looped - 1):.0%} of its gain" if looped > 1 else said


def differing(observations: Sequence[Observation], arms: Sequence[str]) -> dict[str, int]:
    """By arm: how many of its texts are not plain decoding's."""
    plain = {(row.question_id, row.repeat): row.token_hash for row in observations if row.arm == PLAIN}
    pairs = [(row.arm, row.token_hash != plain[row.question_id, row.repeat]) for row in observations]
    return {arm: sum(other for name, other in pairs if name == arm) for arm in arms}


if __name__ == "__main__":
    sys.exit(main())
