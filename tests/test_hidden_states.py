"""The linear map of the target's hidden states: which states, what it is fitted to, where it goes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.hidden_states import explained, outcomes, predicted, states_of, with_columns
from decoding.controller import RootChoice
from decoding.cycle_features import HISTORY_NAMES
from decoding.recording import Prompt, Recording, record
from decoding.sampling import Sampling
from decoding.trace_folder import write_traces
from tests.cycle_world import NAME, merged_table
from tests.test_recording import HEADER
from tests.traced_worlds import DEPTH, END_IDS, PROMPTS, TOKENS, world


def test_a_draft_s_outcome_is_the_most_that_it_could_emit() -> None:
    table = merged_table()
    found = outcomes(table)
    assert found.shape == (table.positions, len(table.decisions.choices))
    assert found.min() == 1
    np.testing.assert_array_equal(found.max(axis=1), table.emitted_PNS[:, 1:].max(axis=(1, 2)))
    every, lookup = (table.decisions.choices.index(one) for one in (RootChoice.ALL, RootChoice.LOOKUP))
    # All of the merged draft holds the lookup's chain.
    assert (found[:, every] >= found[:, lookup]).all()
    assert (found[:, every] > found[:, lookup]).any()


def test_predictions_of_training_texts_are_by_maps_that_did_not_see_them() -> None:
    """States that only name their text tell nothing of another; states that hold the outcome tell all."""
    table = merged_table()
    names = np.repeat(np.eye(table.texts), np.diff(table.starts), axis=0) * 50
    crossed, _ = predicted(names, table, names)
    assert (explained(outcomes(table), crossed) < 0.05).all()
    for begin, end in pairwise(table.starts):
        assert np.ptp(crossed[begin:end], axis=0) == pytest.approx(0)
    known = outcomes(table) * 10 + np.random.default_rng(0).normal(size=(table.positions, 3)) * 0.01
    crossed, held_out = predicted(known, table, known)
    assert crossed.shape == held_out.shape == outcomes(table).shape
    for found in (crossed, held_out):
        assert (explained(outcomes(table), found) > 0.5).all()


def test_columns_stand_before_the_history_at_every_question() -> None:
    table = merged_table()
    columns = np.arange(table.positions * 2, dtype=np.float64).reshape(-1, 2)
    wider = with_columns(table, columns)
    history = len(HISTORY_NAMES)
    old, new = table.features_PNF, wider.features_PNF
    assert new.dtype == np.float32
    np.testing.assert_array_equal(new[:, :, : old.shape[-1] - history], old[:, :, :-history])
    np.testing.assert_array_equal(new[:, :, -history:], old[:, :, -history:])
    wanted = (columns / table.decisions.max_depth).astype(np.float32)
    for node in range(old.shape[1]):
        np.testing.assert_array_equal(new[:, node, -history - 2 : -history], wanted)


def test_variance_explained() -> None:
    wanted = np.array([[0.0], [2.0], [4.0]])
    assert explained(wanted, wanted) == 1
    assert explained(wanted, np.full_like(wanted, 2.0)) == 0
    assert explained(wanted, np.array([[0.0], [2.0], [2.0]])) == pytest.approx(0.5)


def test_states_are_those_of_the_token_before_each_root(tmp_path: Path) -> None:
    """Beside a plain loop: one forward a position, of what was committed before its root."""
    here = world(NAME)
    prompts = [Prompt(f"q{number}", tuple(ids)) for number, ids in enumerate(PROMPTS[:3])]
    recording = Recording(Sampling(), 1, TOKENS, DEPTH)
    recorded = list(record(here.target, here.drafter, END_IDS, prompts, recording))
    for _ in write_traces(tmp_path / "T0", HEADER, prompts, lambda lot: recorded):
        pass
    found = states_of(here.target, tmp_path, prompts)
    place = 0
    for one in recorded:
        known = list(one.prompt.token_ids)
        for token in one.text_ids:
            wanted = np.zeros(found.shape[1], dtype=np.float32)
            if known[:-1]:
                features_RF = here.target.forward(known[:-1], here.target.new_cache()).features_RF
                assert features_RF is not None
                wanted = features_RF[-1].numpy()
            np.testing.assert_allclose(found[place], wanted, rtol=1e-5, atol=1e-6)
            known.append(token)
            place += 1
    assert place == len(found) > 10
    np.testing.assert_array_equal(states_of(here.target, tmp_path, prompts[::-1]), found)
    other = [Prompt("another", prompts[0].token_ids), *prompts[1:]]
    with pytest.raises(ValueError, match="has 'q0', which the configuration's prompts lack"):
        states_of(here.target, tmp_path, other)
    for _ in write_traces(tmp_path / "T1", HEADER, prompts, lambda lot: recorded):
        pass
    with pytest.raises(ValueError, match="holds 2 recordings: name the folder of one"):
        states_of(here.target, tmp_path, prompts)
