"""What a linear map of the target's hidden states says of a cycle, at its root.

The states that are known there are those of the token before the root: the root itself has not been read yet.
For each draft a ridge regression predicts the most tokens that it could emit.

Legend: P positions, N nodes, F features, D states, C drafts, T texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from commands.recorded import recording_folders
from decoding.cycle_features import HISTORY_NAMES
from decoding.decision_table import DecisionTable, Nodes
from decoding.recording import Prompt
from decoding.target import TargetModel
from decoding.trace_folder import read_traces

PENALTIES = (1e2, 1e3, 1e4, 1e5)
FOLDS = 5


def states_of(target: TargetModel, folder: Path, prompts: Sequence[Prompt]) -> np.ndarray:
    """float32 (P, D): the states of all captured layers that are known at each recorded position.

    Raises:
        ValueError: the folder holds several recordings, or one of other prompts.
    """
    found = recording_folders(folder)
    if len(found) > 1:
        raise ValueError(f"{folder} holds {len(found)} recordings: name the folder of one")
    _, texts = read_traces(found[0])
    rows, named = [], {prompt.question_id: prompt for prompt in prompts}
    for text in texts:
        places = [next(iter(drafts.values())) for drafts in text.by_place()]
        # By name: a limit on the prompts gives them in another order.
        prompt = named.get(text.question_id)
        if prompt is None or places[0].context_length != len(prompt.token_ids):
            raise ValueError(
                f"{folder} has {text.question_id!r}, which the configuration's prompts lack or have"
                " otherwise: give it as it was when they were recorded"
            )
        # The root of the first position is the prompt's last token.
        ids = [*prompt.token_ids[:-1], *(place.tree.tokens[0] for place in places[:-1])]
        rows.append(_last_states(target, ids, len(places)))
    return np.concatenate(rows)


def _last_states(target: TargetModel, ids: list[int], count: int) -> np.ndarray:
    """float32 (count, D), after the last `count` of these tokens; 0 where there are fewer."""
    states = np.zeros((count, len(target.fused_layers) * target.hidden_size), dtype=np.float32)
    if ids:
        some_TD = target.states(torch.tensor([ids], device=target.device))[0][0][-count:]
        states[-len(some_TD) :] = some_TD.cpu().float().numpy()
    return states


def outcomes(table: DecisionTable) -> np.ndarray:
    """(P, C) the most tokens that each draft could emit; 1 where it cannot be begun."""
    nodes = Nodes.of(table.decisions)
    emitted = []
    for choice in table.decisions.choices:
        # Not the deepest alone: near the end of a text it is never reached.
        those = [place for place, one in enumerate(nodes.choice) if one == choice]
        emitted.append(table.emitted_PNS[:, those].max(axis=(1, 2)))
    return np.stack(emitted, axis=1).astype(np.float64)


def predicted(
    train_PD: np.ndarray, train: DecisionTable, held_out_PD: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(P, C) predictions for the training positions, each by maps that did not see its text, and for those
    held out."""
    text_P = np.repeat(np.arange(train.texts), np.diff(train.starts))
    wanted_PC = outcomes(train)
    folds = GroupKFold(min(FOLDS, train.texts))
    crossed = cross_val_predict(_map(), train_PD, wanted_PC, groups=text_P, cv=folds)
    return crossed, _map().fit(train_PD, wanted_PC).predict(held_out_PD)


def _map() -> Pipeline:
    return make_pipeline(StandardScaler(), RidgeCV(PENALTIES))


def with_columns(table: DecisionTable, columns_PC: np.ndarray) -> DecisionTable:
    """The table with further features, the same at every question of a position, before the history's."""
    features_PNF, history = table.features_PNF, len(HISTORY_NAMES)
    more = (columns_PC / table.decisions.max_depth).astype(np.float32)[:, None]
    more = np.broadcast_to(more, (*features_PNF.shape[:2], columns_PC.shape[1]))
    parts = [features_PNF[:, :, :-history], more, features_PNF[:, :, -history:]]
    return replace(table, features_PNF=np.concatenate(parts, axis=-1))


def explained(wanted_PC: np.ndarray, predicted_PC: np.ndarray) -> np.ndarray:
    """(C) share of the variance that the predictions explain."""
    left = ((wanted_PC - predicted_PC) ** 2).sum(axis=0)
    shares: np.ndarray = 1 - left / ((wanted_PC - wanted_PC.mean(axis=0)) ** 2).sum(axis=0)
    return shares
