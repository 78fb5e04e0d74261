"""Which arms an evaluation decodes live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from commands.evaluation_replay import ReplayStage
from commands.evaluation_rules import EXPECTED_GAIN, EXPECTED_GAIN_SOURCE
from commands.live_arms import ArmSpec
from configs.schema import Config
from decoding.exported_cycle import Exported, ExportedCycle
from decoding.setting import Setting
from evaluation.protocol import FixedSetting
from evaluation.replayed import kind_of
from policies.baselines.rules import RULES, rule_called

PLAIN, USUAL, BEST, SECOND, AGAIN = "plain", "usual", "best fixed", "second fixed", "best fixed again"
OVERRIDDEN = "policy overridden"
CORNERS, CORNER = "corners", "corner "
IN_HINDSIGHT, CLAIRVOYANT = "best fixed in hindsight", "clairvoyant"  # in replay alone
LEARNED = "learned"


def check_names(config: Config, policies: Iterable[str], beside: Iterable[str]) -> None:
    """ValueError for an arm that there is not, or a further policy's name that an arm has already.

    Args:
        policies: names of all policies. beside: of those that --beside named.
    """
    for name in config.evaluation.rules or []:
        rule_called(name)
    own = [PLAIN, USUAL, BEST, SECOND, AGAIN, EXPECTED_GAIN, OVERRIDDEN, CORNERS, *RULES]
    replayed = [IN_HINDSIGHT, CLAIRVOYANT]
    taken = [name for name in beside if name in (LEARNED, *own, *replayed) or name.startswith(CORNER)]
    if taken:
        raise ValueError(f"--beside {taken[0]}=..: an arm has that name already, choose another")
    known = [*own, *policies]
    unknown = [name for name in config.evaluation.arms or [] if name not in known]
    if unknown:
        raise ValueError(f"evaluation.arms: unknown arm {unknown[0]!r}; there are {', '.join(known)}")


def left_out(config: Config, arms: Sequence[ArmSpec]) -> list[str]:
    """Arms that the configuration names and that are not among these: a line for each."""
    there = {CORNERS if arm.name.startswith(CORNER) else arm.name for arm in arms}
    given, said = config.evaluation, []
    for name in dict.fromkeys(given.arms or []):
        if name in there:
            continue
        why = "there is none in this run"
        if name in RULES and given.rules is not None and name not in given.rules:
            why = "evaluation.rules leaves it out"
        elif name == CORNERS or name in RULES:
            why = "evaluation.rest_prompts is 0"
        elif name == OVERRIDDEN:
            why = "there is no --policy of single cycles"
        said.append(f"evaluation.arms names {name!r}, which is not decoded: {why}")
    return said


def live_arms(
    config: Config, stage: ReplayStage, folders: Mapping[str, Path], policies: Mapping[str, Exported]
) -> list[ArmSpec]:
    """Plain decoding first, then those that the configuration names, or all."""
    names = config.evaluation.arms
    every = list(_every(config, stage, folders, policies))
    if names is None:
        return every
    return [
        arm
        for arm in every
        if arm.name in (PLAIN, *names) or (arm.name.startswith(CORNER) and CORNERS in names)
    ]


def _every(
    config: Config, stage: ReplayStage, folders: Mapping[str, Path], policies: Mapping[str, Exported]
) -> Iterable[ArmSpec]:
    drafter, lookup = stage.drafter, config.draft.lookup_depth
    yield ArmSpec(PLAIN, "plain")
    yield ArmSpec(USUAL, "rule", {"usual": True}, source="the drafter's own setting")
    best = stage.best[0]
    yield _fixed(BEST, best, drafter, lookup, f"{best}, the best of validation texts")
    if len(stage.best) > 1:
        second = stage.best[1]
        yield _fixed(SECOND, second, drafter, lookup, f"{second}, the second best of validation texts")
    yield _fixed(AGAIN, best, drafter, lookup, f"{best} once more: the A/A check")
    yield ArmSpec(EXPECTED_GAIN, "rule", {"expected_gain": stage.expected_gain}, source=EXPECTED_GAIN_SOURCE)
    for place, rule in enumerate(stage.rules):
        how = {"rule": rule.name, "parameters": dict(rule.parameters)}
        # The best of the validation texts meets all prompts; the others, which are many, a few.
        if place == 0 or config.evaluation.rest_prompts:
            yield ArmSpec(rule.name, "rule", how, None, rule.source, rule.tuned, rest=place > 0)
    for name, folder in folders.items():
        yield ArmSpec(name, "learned", {"policy": str(folder.absolute())})
    if isinstance(policies.get(LEARNED), ExportedCycle):
        asked = {"overridden": str(folders[LEARNED].absolute()), "setting": best.to_json()}
        yield ArmSpec(OVERRIDDEN, "rule", asked, tuned=f"asks the policy, does {best}")
    if config.evaluation.rest_prompts:
        for setting in _corners(config, stage):
            yield _fixed(f"{CORNER}{setting}", setting, drafter, lookup, "a corner of the grid", rest=True)


def _fixed(name: str, setting: Setting, drafter: str, lookup: int, tuned: str, rest: bool = False) -> ArmSpec:
    kind = kind_of(setting, drafter)
    point = FixedSetting(
        kind, setting.draft_depth, setting.verification_size, lookup if kind == "merged" else None
    )
    return ArmSpec(name, "fixed", {"setting": setting.to_json()}, point, tuned=tuned, rest=rest)


def _corners(config: Config, stage: ReplayStage) -> list[Setting]:
    """Of the kind of draft that the best setting has."""
    best, decisions = stage.best[0], stage.decisions
    depths, sizes = config.evaluation.draft_depths, config.evaluation.verification_sizes
    deep = {min(depths[0], decisions.max_depth), min(depths[-1], decisions.max_depth)}
    wide = {_nearest(sizes[0], decisions.sizes), _nearest(sizes[-1], decisions.sizes)}
    if best.draft_depth == 0:
        deep = {0}
    return [
        Setting(best.choice, depth, size, best.composite) for depth in sorted(deep) for size in sorted(wide)
    ]


def _nearest(size: int, sizes: tuple[int, ...]) -> int:
    return min(sizes, key=lambda one: abs(one - size))
