"""A report with every optional part, numbers made up: for tests of what is shown of it, and to look at."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from evaluation.schema import Report

CATEGORIES = ("chat", "coding", "extraction", "maths", "reasoning", "summarisation", "translation", "writing")
LANGUAGES = ("en", "es", "it", "zh")
TEMPERATURES = ("0.0", "0.7", "1.0")

# name: kind, tokens/s, tau
ARMS = {
    "plain": ("plain", 87.6, 1.0),
    "usual 4x8": ("fixed", 121.0, 2.31),
    "composite 2x3": ("fixed", 160.1, 2.02),
    "composite 2x5": ("fixed", 161.3, 2.14),
    "merged 6x16": ("fixed", 118.2, 2.71),
    "heuristic +2/-1": ("rule", 133.0, 2.25),
    "confidence": ("rule", 141.5, 2.12),
    "entropy stop (SVIP)": ("rule", 139.0, 2.09),
    "AdaEDL": ("rule", 140.2, 2.1),
    "GammaTune": ("rule", 129.4, 2.2),
    "UCB": ("rule", 152.0, 2.05),
    "expected gain": ("rule", 166.8, 2.18),
    "learned": ("learned", 171.2, 2.08),
    "fullinfo": ("learned", 170.4, 2.11),
    "ltd": ("learned", 125.1, 2.44),
    "composite 2x5 again": ("fixed", 161.6, 2.14),
}
TUNED = {"confidence": "threshold 0.42", "expected gain": "rate of a token 161.0, by temperature"}
LEARNED_ACTIONS = (
    (0, 0, 20), (1, 3, 160), (2, 3, 340), (2, 5, 220), (4, 5, 60), (4, 8, 45), (6, 8, 12), (6, 16, 3),
)  # fmt: skip
FIXED_ACTIONS = ((2, 5, 800), (1, 4, 30), (0, 0, 9))
LEARNED, BEST, AGAIN = "learned", "composite 2x5", "composite 2x5 again"
VERDICT = (
    "The learned policy won: it decoded 6.1 % more tokens per second than the best fixed setting (composite, "
    "draft depth 2, lookup depth 6, size 5; chosen on validation texts) (95 % interval +3.6 % to +8.6 %, "
    "which excludes 0), and 95.4 % more tokens per second than plain decoding (95 % interval +84.2 % to "
    "+107.2 %, which excludes 0)."
)


def whole_report(**changed: Any) -> Report:
    """Every part is there; `changed` replaces whole parts."""
    rng = np.random.default_rng(7)
    arms = {name: _arm(name, *arm, rng) for name, arm in ARMS.items()}
    parts: dict[str, Any] = {
        **_run(),
        "arms": arms,
        "grid": [_point("composite", 2, 3, 160.1), _point("composite", 2, 5, 161.3)],
        "comparisons": [
            compared(LEARNED, BEST, 1.061, 0.012, True),
            compared(LEARNED, "composite 2x3", 1.069, 0.013, True),
            compared(LEARNED, "plain", 1.954, 0.03, True),
            compared(LEARNED, "expected gain", 1.026, 0.009, True),
            compared(LEARNED, "fullinfo", 1.004, 0.006, False),
            compared(LEARNED, "ltd", 1.368, 0.04, True),
            compared(BEST, "plain", 1.841, 0.03, True),
        ],
        "verdict": VERDICT,
        "by_category": {name: _slices(arms, rng) for name in CATEGORIES},
        "by_language": {name: _slices(arms, rng) for name in LANGUAGES},
        "by_temperature": {name: _slices(arms, rng) for name in TEMPERATURES},
        "same_questions": {name: _slices(arms, rng) for name in LANGUAGES},
        "slices": {
            "by_category": {name: _rivals(rng, few=name == "writing") for name in CATEGORIES},
            "by_language": {name: _rivals(rng) for name in LANGUAGES},
            "by_temperature": {name: _rivals(rng) for name in TEMPERATURES},
        },
        "replay": _replay(rng),
        "overhead": compared("learned, overridden", BEST, 0.996, 0.004),
        "free_running": _slices({name: arms[name] for name in ("plain", BEST, LEARNED)}, rng),
        "strips": [_strip("chat-07", "chat"), _strip("code-03", "coding"), _strip("it-02", None)],
        **_checks(),
    }
    return Report.model_validate({**parts, **changed})


def _run() -> dict[str, Any]:
    return {
        "machine": {
            "cpu": "AMD EPYC 7003 (made up)", "cores": 2, "threads": 1, "gpu": None,
            "platform": "Linux-6.1-x86_64", "load_mean": 1.1, "load_max": 1.6,
        },
        "versions": {"python": "3.11.7", "torch": "2.13.0+cpu", "gguf": None},
        "models": {
            "target": "smollm2-135m", "drafter": "merged", "target_fingerprint": "79a25b7fea83d69d",
            "drafter_fingerprint": "merged-6-ngram-match2-recent4-branches3-calibrated-7a221b05-305bd58c2dc8",
            "path": "fast",
        },
        "dtype": "float32",
        "sampling": {"temperatures": [0.0, 0.7, 1.0], "top_p": 0.95, "max_new_tokens": 64},
        "workload": {
            "files": ["configs/prompts/mixed.jsonl", "configs/prompts/multilingual.jsonl"], "split": "test",
            "requests": 92, "groups": 61, "repeats": 3,
            "categories": dict.fromkeys(CATEGORIES, 11),
            "languages": {"en": 56, "es": 12, "it": 12, "zh": 12},
        },
        "confidence": 0.95,
        "config": {"seed": 1, "model": {"target": "smollm2-135m", "drafter": "merged"}},
        "policy": {"schema_version": 1, "kind": "cycle", "collapse": []},
        "seeds": {"noise": 1, "order": 1, "bootstrap": 1},
        "reruns": 2, "disturbed": 1, "blocks": 270, "blocks_planned": 276,
        "command": "python evaluate.py --config configs/mixed.yaml --policy runs/mixed/policy --set seed=1",
    }  # fmt: skip


def _checks() -> dict[str, Any]:
    regimes = (
        ("this machine", False, True, "composite 2x5", 1.84, 1.061),
        ("flat costs, as on a GPU", True, False, "composite 6x16", 2.05, 1.034),
        ("drafting free", True, False, "merged 6x8", 2.31, 1.012),
        ("drafting as dear as verifying", True, False, "lookup 1x3", 1.31, 0.996),
    )
    return {
        "bound": {"reachable_share": 0.74, "clairvoyant_share": 0.19},
        "aa": {
            "a": BEST, "b": AGAIN, "ratio": 0.998, "low": 0.991, "high": 1.006, "half_width": 0.0045,
            "usable": True,
        },
        "power": {"effect": 0.02, "spread": 0.052, "groups": 61, "groups_needed": 54},
        "reliability": [
            {"low": edge / 10, "high": (edge + 1) / 10, "nodes": int(9000 / (1 + edge)),
             "promised": edge / 10 + 0.05, "came": min(1.0, edge / 10 + 0.05 + (edge - 5) * 0.008)}
            for edge in range(10)
        ],
        "collapse": {"information": 0.2198, "collapse": [], "kept": "full information"},
        "cross_check": [
            {"draft_depth": depth, "measured": 1.5 - 0.03 * (depth - 2) ** 2,
             "joint": 1.52 - 0.03 * (depth - 2) ** 2, "constant_alpha": 1.55 - 0.02 * (depth - 3) ** 2,
             "low": 1.44 - 0.03 * (depth - 2) ** 2, "high": 1.56 - 0.03 * (depth - 2) ** 2, "theorem": 1.7,
             "verification_size": depth}
            for depth in (1, 2, 4, 6)
        ],
        "regimes": [
            {"name": name, "synthetic": synthetic, "live": live, "best_fixed": best,
             "best_fixed_vs_plain": speed, "learned": compared(LEARNED, best, ratio, 0.012, False),
             "costs": "a verification as dear as a plain step" if synthetic else "",
             "best_hindsight": best, "over_hindsight": compared(LEARNED, best, ratio - 0.01, 0.012),
             "learned_over_gain": compared(LEARNED, "expected gain", 1.03, 0.01),
             "clairvoyant": compared("clairvoyant", best, 1.31, 0.01)}
            for name, synthetic, live, best, speed, ratio in regimes
        ],
    }  # fmt: skip


def compared(
    a: str, b: str, ratio: float, spread: float, claimed: bool = False, groups: int = 61
) -> dict[str, Any]:
    few = groups < 6
    return {
        "a": a, "b": b, "ratio": ratio, "claimed": claimed, "ratio_of_sums": ratio * 1.002, "groups": groups,
        "low": None if few else ratio * math.exp(-2 * spread),
        "high": None if few else ratio * math.exp(2 * spread),
        "p_value": None if few else 0.01,
    }  # fmt: skip


def _arm(name: str, kind: str, rate: float, tau: float, rng: np.random.Generator) -> dict[str, Any]:
    plain, learned = kind == "plain", kind == "learned"
    policy, draft = 0.0063 if learned else 0.002, 0.0 if plain else 0.22
    shares = {"draft": draft, "select": 0.003, "commit": 0.009, "policy": policy}
    shares["verify"] = 1 - sum(shares.values())
    emitted = [0, *(int(400 / (1 + extra) ** 1.3) + int(rng.integers(5)) for extra in range(7))]
    return {
        "kind": kind, "tokens_per_second": rate, "speedup_vs_plain": rate / 87.6, "tau": tau, "requests": 276,
        "policy_overhead_fraction": policy, "text_equal": True, "texts_unequal": 0,
        "acceptance_rate": [] if plain else [0.66, 0.61, 0.58],
        "seconds_by_phase": {phase: 50 * share for phase, share in shares.items()},
        "source": "arXiv 2510.26577" if name == "expected gain" else None,
        "tuned": TUNED.get(name),
        "latency": _latency(1000 / rate, tau),
        "peak_memory_mb": 812.0,
        "emitted": [0, 900] if plain else emitted,
        "actions": [
            {"draft_depth": depth, "verification_size": size, "cycles": cycles}
            for depth, size, cycles in (LEARNED_ACTIONS if learned else FIXED_ACTIONS)
        ],
        "over_plain": None if plain else compared(name, "plain", rate / 87.2, 0.03, False),
    }  # fmt: skip


def _latency(milliseconds: float, tau: float) -> dict[str, Any]:
    def around(middle: float) -> dict[str, float]:
        return {"p50": middle, "p95": middle * 1.7, "p99": middle * 2.4}

    return {
        "ttft": around(41.0),
        "itl_cycle": around(milliseconds * tau),
        "itl_amortised": around(milliseconds),
        "total": around(64 * milliseconds),
    }


def _slices(arms: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {
        name: {
            "tokens_per_second": arm["tokens_per_second"] * (scale := float(rng.uniform(0.8, 1.3))),
            "speedup_vs_plain": arm["speedup_vs_plain"] * scale,
            "tau": arm["tau"],
            "requests": 33,
        }
        for name, arm in arms.items()
    }


def _rivals(rng: np.random.Generator, few: bool = False) -> list[dict[str, Any]]:
    groups = 4 if few else 11
    return [
        compared(LEARNED, rival, ratio * float(rng.uniform(0.95, 1.06)), 0.03, True, groups)
        for rival, ratio in (("plain", 1.9), (BEST, 1.06), ("composite 2x3", 1.07))
    ]


def _point(drafter: str, depth: int, size: int, rate: float) -> dict[str, Any]:
    return {"drafter": drafter, "lookup_depth": None if drafter in ("head", "lookup") else 6,
            "draft_depth": depth, "verification_size": size, "tokens_per_second": rate}  # fmt: skip


def _replay(rng: np.random.Generator) -> dict[str, Any]:
    tops = (("head", 115, 2), ("lookup", 150, 6), ("composite", 168, 2), ("merged", 164, 2))
    grid = [
        _point(drafter, depth, size, top - 3 * (depth - best) ** 2 - 0.3 * (size - 5) ** 2 + rng.uniform())
        for drafter, top, best in tops
        for depth in (1, 2, 4, 6)
        for size in (3, 5, 8, 16)
    ]
    arms: dict[str, Any] = {
        name: {
            "kind": kind, "tokens_per_second": rate * 1.02, "speedup_vs_plain": rate / 87.6, "tau": tau,
            "tuned": TUNED.get(name),
            "learned_over_it": None if name == LEARNED else compared(LEARNED, name, 171.2 / rate, 0.008),
        }
        for name, (kind, rate, tau) in ARMS.items()
        if name != AGAIN
    }  # fmt: skip
    for name, rate in (("reachable bound", 176.0), ("clairvoyant", 224.0)):
        arms[name] = {"kind": "bound", "tokens_per_second": rate, "speedup_vs_plain": rate / 87.6}
    return {
        "texts": 92, "tokens": 11_093, "arms": arms, "grid": grid,
        "best_by_validation": ["composite 2x5", "composite 2x3"], "best_in_hindsight": "composite 2x5",
        "best_by_category": {name: f"composite {2 + len(name) % 3}x5" for name in CATEGORIES},
        "warnings": ["lookup: the best of its grid, depth 6, is the deepest that was recorded"],
        "not_slower": {name: (1.1 + len(name) / 12, 0.9 + len(name) / 14) for name in CATEGORIES},
    }  # fmt: skip


def _strip(question: str, category: str | None) -> dict[str, Any]:
    text = (
        "The sky is blue at noon because sunlight is scattered by the air :\n short waves scatter most , and "
        "blue is short . At sunset the light crosses far more air , so blue is gone before it arrives , and "
        "what is left is red .\n\n def scatter ( wave ) : return 1 / wave ** 4"
    )
    pieces = [
        word if word.startswith("\n") else f" {word}" for word in text.replace("\n", "\n ").split(" ") if word
    ]
    depths = [2, 4, 1, 0, 2, 6, 2, 1, 4, 0, 0, 2]
    cycles: list[dict[str, Any]] = []
    start = 0
    while start < len(pieces):
        depth = depths[len(cycles) % len(depths)]
        length = 1 + min(depth, (len(cycles) * 7 + len(question)) % 5)
        cycles.append({"draft_depth": depth, "verification_size": depth and depth + 2,
                       "tokens": pieces[start : start + length]})  # fmt: skip
        start += length
    return {"question_id": question, "category": category, "cycles": cycles}
