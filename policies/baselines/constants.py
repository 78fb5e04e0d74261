"""Constants: the same setting in every cycle, and the best of a grid of them.

Legend: B questions, A actions, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import DecisionTable
from decoding.decision_walk import Decide
from decoding.decisions import PLAIN_ACTION, Decisions
from decoding.setting import Setting
from policies.constant_seconds import ConstantSeconds


def settings_of(decisions: Decisions) -> Iterator[Setting]:
    """The whole grid of constants that these decisions can follow, the plain one first."""
    yield Setting(RootChoice.PLAIN, 0, 0)
    for choice in decisions.choices:
        depths = [0] if choice == RootChoice.LOOKUP else range(1, decisions.max_depth + 1)
        yield from (Setting(choice, depth, size) for depth in depths for size in decisions.sizes)
    if {RootChoice.ALL, RootChoice.LOOKUP} <= set(decisions.choices):
        for depth in range(1, decisions.max_depth + 1):
            yield from (Setting(RootChoice.ALL, depth, size, composite=True) for size in decisions.sizes)


def constant(features: CycleFeatures, decisions: Decisions, setting: Setting) -> Decide:
    """The same in every cycle, as far as it is allowed: a lookup without a match is a plain step, the head
    alone without one is the draft of all, and a size above the draft's is all of it."""
    depth, match = features.names.index("draft_depth"), features.names.index("match_length")
    more = decisions.continue_action
    if setting.choice == RootChoice.PLAIN:
        return lambda features_BF, allowed_BA: np.zeros(len(features_BF), dtype=np.int64)
    wanted = decisions.verify_action(setting.verification_size)
    order = [decisions.draft_action(setting.choice)]
    if setting.choice == RootChoice.HEAD and RootChoice.ALL in decisions.choices:
        order.append(decisions.draft_action(RootChoice.ALL))
    order.append(PLAIN_ACTION)

    def decide(features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        first_B = np.array(order)[allowed_BA[:, order].argmax(axis=1)]
        if setting.composite:
            lookup = decisions.draft_action(RootChoice.LOOKUP)
            first_B = np.where(features_BF[:, match] > 0, lookup, first_B)
        depth_B = np.rint(features_BF[:, depth] * features.max_depth)
        deeper_B = (depth_B < setting.draft_depth) & allowed_BA[:, more]
        largest_B = wanted - allowed_BA[:, more + 1 : wanted + 1][:, ::-1].argmax(axis=1)
        later_B = np.where(deeper_B, more, largest_B)
        # Not by the features: a draft that found nothing looks like its root.
        actions_B: np.ndarray = np.where(allowed_BA[:, PLAIN_ACTION], first_B, later_B)
        return actions_B

    return decide


def best_constant(
    table: DecisionTable, costs: DecisionCosts, settings: Sequence[Setting] | None = None
) -> tuple[Setting, dict[Setting, np.ndarray]]:
    """The constant of least total seconds, and the seconds of each text under every one."""
    seconds_of = ConstantSeconds(table, costs)
    seconds = {setting: seconds_of(setting) for setting in (settings or list(settings_of(table.decisions)))}
    return min(seconds, key=lambda setting: float(seconds[setting].sum())), seconds
