"""The rules of other papers in replay: tuned on validation recordings, then beside plain decoding, the best
constant and expected gain on any others.

All arms are replayed by the same session with the profile's costs, a question to a rule counted as one to a
fixed controller. The constant and expected gain are chosen on the same validation texts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.measure import wide_console
from commands.headroom import progress_console
from commands.recorded import choices_of, read_recorded
from commands.recorded_sessions import RecordedTexts
from configs.command import exit_code
from decoding.artifacts import write_json
from decoding.controller import PlainController
from decoding.cycle_features import CycleFeatures
from decoding.decisions import DecisionController, Decisions
from decoding.profile import CostProfile
from decoding.remembered_costs import RememberedCosts
from decoding.setting import setting_controller
from decoding.trace_file import TraceHeader
from decoding.trace_folder import read_traces
from policies.baselines import ExpectedGain, LiveExpectedGain, best_constant, fit_expected_gain
from policies.baselines.offers import Offers
from policies.baselines.rules import RULES, Factory, rule_called
from policies.baselines.tuning import Trial, Tuned, spent, tune

# Of constants and expected gain.
SIZES = (1, 2, 3, 4, 5, 6, 8, 12)
PLAIN = "plain"


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, replay, print; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rules", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--validation", type=Path, required=True, help="a recording to tune on")
    parser.add_argument("--texts", type=Path, nargs="*", default=[], help="recordings to replay as well")
    parser.add_argument("--profile", type=Path, required=True, help="profile.json of that temperature")
    parser.add_argument("--rules", nargs="+", default=list(RULES), help=f"default: {', '.join(RULES)}")
    parser.add_argument("--out", type=Path, required=True, help="folder for rules.json")
    options = parser.parse_args(arguments)
    return exit_code(
        lambda: run(options.validation, options.texts, options.profile, options.rules, options.out),
        "nothing was written",
    )


def run(validation: Path, texts: Sequence[Path], profile: Path, names: Sequence[str], out: Path) -> None:
    """Measure, print, and write `OUT/rules.json`."""
    rules = [rule_called(name) for name in names]
    costs = CostProfile.load(profile)
    known = _read(validation, costs)
    offers = Offers.of(choices_of(known.header), known.header.draft_depth)
    tuned = {}
    for rule in rules:
        with progress_console().status(f"tuning {rule.name}") as status:
            started = time.perf_counter()
            one = tune(rule, known.sessions, offers, partial(_tell, status.update, rule.name))
            tuned[rule.name] = (one, time.perf_counter() - started)
    arms = dict(yardsticks(validation, known.header, costs))
    speeds: dict[str, dict[str, float]] = {}
    for folder in (validation, *texts):
        recording = known if folder == validation else _read(folder, costs)
        makers = {**arms, **{name: one.factory() for name, (one, _) in tuned.items()}}
        speeds[str(folder)] = dict(_speeds(makers, recording))
    console = wide_console()
    for name, found in speeds.items():
        _print(console, name, found, {name: one for name, (one, _) in tuned.items()})
    content = {
        "profile": str(profile),
        "tuned": {name: {**one.to_json(), "took": took} for name, (one, took) in tuned.items()},
        "tokens_per_second": speeds,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "rules.json", content)
    took = sum(seconds for _, seconds in tuned.values())
    print(f"tuning took {took:.0f} s; wrote {out / 'rules.json'}")


def yardsticks(validation: Path, header: TraceHeader, costs: CostProfile) -> Iterator[tuple[str, Factory]]:
    """Plain decoding, and the best constant and expected gain of the validation texts."""
    decisions = Decisions(choices_of(header), header.draft_depth, SIZES)
    recorded = read_recorded(validation, decisions, [costs], costs.policy)
    setting, seconds = best_constant(recorded.table, recorded.costs)
    rate = recorded.table.positions / float(seconds[setting].sum())
    rule: ExpectedGain = fit_expected_gain(recorded.table, recorded.costs, costs, rate)
    features = CycleFeatures(SIZES, header.draft_depth, header.temperature)
    yield PLAIN, PlainController
    yield f"constant: {setting}", lambda: setting_controller(setting, decisions)
    yield "expected gain", lambda: DecisionController(decisions, LiveExpectedGain(rule, features))


def _read(folder: Path, costs: CostProfile) -> RecordedTexts:
    header, texts = read_traces(folder)
    return RecordedTexts(header, list(texts), RememberedCosts(costs))


def _tell(say: Callable[[str], None], name: str, trial: Trial) -> None:
    say(f"tuning {name}: {trial.parameters}: {trial.seconds:.3f} s")


def _speeds(makers: Mapping[str, Factory], recording: RecordedTexts) -> Iterable[tuple[str, float]]:
    for name, factory in makers.items():
        with progress_console().status(f"replaying {name}"):
            seconds, tokens = spent(factory, recording.sessions)
        yield name, tokens / seconds


def _print(console: Console, name: str, speeds: Mapping[str, float], tuned: Mapping[str, Tuned]) -> None:
    table = Table(title=name, box=SIMPLE)
    for column in ("", "tokens/s", "over plain", "over the constant", "tuned"):
        table.add_column(column, justify="left" if column in ("", "tuned") else "right")
    constant = next(value for arm, value in speeds.items() if arm.startswith("constant"))
    for arm, value in speeds.items():
        said = _said(tuned[arm].parameters) if arm in tuned else ""
        table.add_row(arm, f"{value:.1f}", f"{value / speeds[PLAIN]:.3f}", f"{value / constant:.3f}", said)
    console.print(table)


def _said(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


if __name__ == "__main__":
    sys.exit(main())
