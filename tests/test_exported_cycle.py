"""An exported policy of every decision: its decisions, its refusals, and no effect on a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from decoding import native
from decoding.artifacts import load_tensors, save_tensors
from decoding.controller import DraftView, QuestionKind, RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decisions import DecisionController, Decisions
from decoding.decoder import SpeculativeDecoder
from decoding.exported import INFO_FILE, WEIGHTS_FILE, ExportedController, Network
from decoding.exported_cycle import CyclePolicyInfo, ExportedCycle, load_policy
from decoding.models import LoadedModel
from decoding.native_network import NativeNetwork
from decoding.setting import Setting
from policies.export import export_cycle, export_policy, network_of_layers
from tests.cycle_world import (
    CASES,
    DECISIONS,
    NAME,
    SIZES,
    decided,
    exported,
    info,
    merged_table,
    wild_layers,
)
from tests.fake_policies import INFO, wild_pair
from tests.test_export import change
from tests.traced_worlds import DEPTH, END_IDS, PROMPTS, TOKENS, session_of, text_of, world

torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return exported(tmp_path / "policy")


# --- the folder -------------------------------------------------------------------------------------------


def test_what_is_exported_is_what_is_loaded(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [INFO_FILE, WEIGHTS_FILE]
    controller = ExportedCycle.load(str(folder))
    assert controller.info == info()
    assert isinstance(load_policy(folder), ExportedCycle)
    mine = network_of_layers(list(wild_layers(0)))
    assert controller.network.widths == mine.widths == [20, 24, 10]
    assert controller.network.activation == "relu"
    for loaded, layer in zip(controller.network.layers, mine.layers, strict=True):
        for ours, theirs in zip(loaded, layer, strict=True):
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours, theirs)
    raw = json.loads((folder / INFO_FILE).read_text())
    assert (raw["schema_version"], raw["kind"]) == (1, "cycle")
    assert raw["features"] == {"names": list(CycleFeatures(SIZES, DEPTH).names), "cost_ratios": []}
    assert raw["actions"][:5] == ["plain", "draft all", "draft lookup", "draft head", "continue"]
    assert raw["fallback"] == {
        "choice": "all",
        "draft_depth": 2,
        "verification_size": 5,
        "composite": False,
    }
    assert raw["collapse"] == ["it answers alike"]


def test_cost_ratios_are_kept(tmp_path: Path) -> None:
    features = CycleFeatures(SIZES, DEPTH, cost_ratios=(0.5, 20.0))
    layers = nn.Sequential(nn.Linear(22, 10))
    export_cycle(tmp_path / "p", network_of_layers(list(layers)), info(features=features))
    assert ExportedCycle.load(tmp_path / "p").info.features.cost_ratios == (0.5, 20.0)


def test_a_pair_is_loaded_as_a_pair_and_another_kind_refused(folder: Path, tmp_path: Path) -> None:
    export_policy(tmp_path / "pair", *wild_pair(), INFO)
    assert isinstance(load_policy(tmp_path / "pair"), ExportedController)
    raw = json.loads((folder / INFO_FILE).read_text())
    (folder / INFO_FILE).write_text(json.dumps(raw | {"kind": "oracle"}))
    with pytest.raises(ValueError, match="is of kind 'oracle', must be pair or cycle"):
        load_policy(folder)


def refused(folder: Path, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        load_policy(folder)
    assert len(str(error.value).splitlines()) == 1
    assert str(folder) in str(error.value)


def test_missing_and_damaged_files_are_named(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "does not exist")
    weights, about = folder / WEIGHTS_FILE, folder / INFO_FILE
    whole, text = weights.read_bytes(), about.read_text()
    weights.write_bytes(whole[: len(whole) // 2])
    refused(folder, "damaged or truncated")
    weights.unlink()
    refused(folder, "does not exist")
    weights.write_bytes(whole)
    about.write_text(text[:100])
    refused(folder, "not readable JSON")
    about.write_text("[]")
    refused(folder, "not a JSON object")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("schema_version", 2, "schema_version is 2, this code reads 1"),
        ("schema_version", None, "lacks 'schema_version'"),
        ("networks", None, "lacks 'networks'"),
        ("networks", {"depth": {}}, "lacks 'cycle'"),
        ("networks.cycle.activation", "gelu", "must be relu or tanh"),
        ("networks.cycle.widths", [20, 10], "do not fit"),
        ("networks.cycle.widths", [20, 24, 9], "do not fit"),
        ("networks.cycle.widths", [20], "do not fit"),
        ("networks.cycle.widths", 3, "cannot be used"),
        ("features.names", ["a"], "not those that this code has: export again"),
        ("features.cost_ratios", [1.0], "not those that this code has"),
        ("features.cost_ratios", ["a"], "cannot be used"),
        ("actions", ["plain"], "not those that this code has"),
        ("decisions.sizes", [1, 2, 5, 9], "not those that this code has"),
        ("decisions.sizes", [], "sizes are"),
        ("decisions.max_depth", 0, "max_depth is 0"),
        ("decisions.choices", ["some"], "SOME"),
        ("decisions", 3, "cannot be used"),
        ("fingerprints", {"target": "aa"}, "fingerprints lack drafter, tokenizer"),
        ("fallback.choice", "some", "SOME"),
        ("fallback.draft_depth", "2", "draft_depth is '2', must be a whole number"),
        ("fallback.verification_size", -1, "verification_size is -1"),
        ("fallback.more", 1, "cannot be used"),
        ("fallback", 3, "cannot be used"),
        ("fallback", None, "lacks 'fallback'"),
        ("calibration", None, "lacks 'calibration'"),
        ("calibration", 3, "cannot be used"),
        ("collapse", 3, "cannot be used"),
    ],
)
def test_an_info_that_says_something_else_is_refused(folder: Path, path: str, value: Any, words: str) -> None:
    raw = json.loads((folder / INFO_FILE).read_text())
    (folder / INFO_FILE).write_text(json.dumps(change(raw, path, value)))
    refused(folder, words)


def test_weights_that_do_not_fit_or_are_not_finite_are_refused(folder: Path) -> None:
    tensors = load_tensors(folder / WEIGHTS_FILE, "policy weights")
    for changed, words in (
        ({key: value for key, value in tensors.items() if key != "cycle.1.bias"}, "cycle.1.bias"),
        (tensors | {"cycle.0.weight": torch.zeros(3, 3)}, "layer 0 of cycle is"),
        (tensors | {"cycle.0.bias": torch.full_like(tensors["cycle.0.bias"], torch.nan)}, "not finite"),
        (tensors | {"cycle.1.bias": torch.full_like(tensors["cycle.1.bias"], torch.inf)}, "not finite"),
    ):
        save_tensors(folder / WEIGHTS_FILE, changed)
        refused(folder, words)


def test_what_cannot_be_exported_is_named_and_leaves_the_old(folder: Path) -> None:
    for widths in ((19, 10), (20, 9)):
        with pytest.raises(
            ValueError, match=f"it maps {widths[0]} features to {widths[1]} actions, not 20 to 10"
        ):
            export_cycle(folder, network_of_layers([nn.Linear(*widths)]), info())
    with pytest.raises(ValueError, match="a policy with ELU between its layers"):
        network_of_layers([nn.Linear(20, 4), nn.ELU(), nn.Linear(4, 10)])
    with pytest.raises(ValueError, match="a policy with ReLU, Tanh"):
        network_of_layers([nn.Linear(20, 4), nn.ReLU(), nn.Tanh(), nn.Linear(4, 10)])
    diverged = nn.Linear(20, 10)
    with torch.no_grad():
        diverged.weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="not finite: its training diverged"):
        network_of_layers([diverged])
    assert ExportedCycle.load(folder).info == info()
    other = CycleFeatures(SIZES[:-1], DEPTH)
    with pytest.raises(ValueError, match="of other sizes or depths"):
        info(features=other)


def test_training_on_does_not_change_what_was_exported() -> None:
    layer = nn.Linear(20, 10)
    network = network_of_layers([layer])
    before = network.layers[0][0].copy()
    with torch.no_grad():
        layer.weight.add_(1)
    np.testing.assert_array_equal(network.layers[0][0], before)


def test_other_models_are_refused_and_another_machine_is_warned_of(folder: Path) -> None:
    controller = ExportedCycle.load(folder)
    prints = controller.info.fingerprints
    mine = (prints["target"], prints["drafter"])
    assert controller.check(*mine, "cpu", "float64") == []
    assert len(controller.check(*mine, "cuda", "bfloat16")) == 2
    for given, words in (
        (("zz", mine[1]), "target .*, this is zz"),
        ((mine[0], "zz"), "drafter .*, this is zz"),
    ):
        with pytest.raises(ValueError, match=words):
            controller.check(*given, "cpu", "float64")


# --- decisions --------------------------------------------------------------------------------------------


class Compared:
    """Asks an exported policy, and holds each answer against torch's."""

    def __init__(self, policy: ExportedCycle, layers: nn.Module) -> None:
        self.policy, self.layers = policy, layers
        self.taken: set[tuple[QuestionKind, int]] = set()

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        action = self.policy.decide(kind, view, allowed)
        features = replace(self.policy.info.features, temperature=view.temperature)
        assert allowed[action]
        assert action == decided(self.layers, features(view), list(allowed))
        self.taken.add((kind, action))
        return action


def test_it_decides_as_the_trained_net_in_live_sessions(folder: Path) -> None:
    taken: set[tuple[QuestionKind, int]] = set()
    for seed in range(6):
        policy = ExportedCycle.load(exported(folder, seed))
        for case in CASES:
            compared = Compared(policy, wild_layers(seed))
            session = session_of(case)
            list(session.run(DecisionController(DECISIONS, compared)))
            assert session.generated == text_of(case)
            taken |= compared.taken
        assert policy.fallbacks == 0
    assert {kind for kind, _ in taken} == {"draft", "level", "size"}
    assert {action for _, action in taken} == set(range(len(DECISIONS)))


@pytest.mark.parametrize("compiled", [True, False])
def test_it_decides_as_the_trained_net_at_every_recorded_question(folder: Path, compiled: bool) -> None:
    """With the same features and mask, whatever a session would ask, with native code and without."""
    table, policy = merged_table(), ExportedCycle.load(folder)
    policy._native = NativeNetwork(native.library(), policy.network) if compiled else None
    asked = table.allowed_PNA.any(axis=2)
    with torch.no_grad():
        outputs = wild_layers(0)(torch.from_numpy(table.features_PNF[asked])).numpy()
    wanted = np.where(table.allowed_PNA[asked], outputs, -np.inf).argmax(axis=1)
    found = []
    for features, allowed in zip(table.features_PNF[asked], table.allowed_PNA[asked], strict=True):
        fake = SimpleNamespace(of_draft=lambda view, row=features: row.tolist(), of_cycle=lambda view: [])
        policy._features = {0.0: fake}  # type: ignore[dict-item]
        found.append(policy.decide("level", DraftView(None, 1, 1, 1), allowed.tolist()))  # type: ignore[arg-type]
    assert found == wanted.tolist()


def test_of_equal_outputs_the_first_allowed_is_taken() -> None:
    flat = Network([(np.zeros((10, 20), dtype=np.float32), np.zeros(10, dtype=np.float32))], "relu")
    policy = ExportedCycle(info(), flat)
    session = session_of(CASES[1])
    question = next(session.cycle())
    assert policy.decide("draft", question.view, DECISIONS.allowed("draft", question.view)) == 0
    allowed = [False, False, True, True] + [False] * 6
    assert policy.decide("draft", question.view, allowed) == 2


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_outputs_that_are_no_numbers_are_the_fallbacks_and_counted(
    poison: float, spread: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, or one alone: it may have been the best. Of what is not allowed it is nothing."""
    monkeypatch.setattr(native, "loaded", native.library if compiled else lambda: None)
    session = session_of(CASES[1])
    view = next(session.cycle()).view
    allowed = DECISIONS.allowed("draft", view)
    bias = np.zeros(10, dtype=np.float32)
    bias[: 10 if spread else 1] = poison
    policy = ExportedCycle(info(fallback=Setting(RootChoice.HEAD, 2, 5)), _constant(bias))
    assert policy.decide("draft", view, allowed) == DECISIONS.draft_action(RootChoice.HEAD)
    assert policy.fallbacks == 1
    bias = np.arange(10, dtype=np.float32)
    bias[DECISIONS.continue_action :] = poison
    policy = ExportedCycle(info(), _constant(bias))
    assert policy.decide("draft", view, allowed) == 3
    assert policy.fallbacks == 0


def _constant(bias: np.ndarray) -> Network:
    return Network([(np.zeros((10, 20), dtype=np.float32), bias)], "relu")


def test_a_policy_that_overflows_follows_its_fallback_to_the_end() -> None:
    huge = np.full((10, 20), 3e38, dtype=np.float32)
    policy = ExportedCycle(
        info(), Network([(huge, huge[:, 0]), (np.full((10, 10), 3e38, dtype=np.float32), huge[:, 0])], "relu")
    )
    session = session_of(CASES[1])
    records = list(session.run(policy))
    assert session.generated == text_of(CASES[1])
    assert policy.fallbacks == policy.asked > 0
    assert max(record.draft_depth for record in records) == 2


# --- texts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_decoder_with_the_policy_says_what_plain_decoding_says(folder: Path, temperature: float) -> None:
    here = world(NAME)
    decoder = SpeculativeDecoder(LoadedModel("tiny", here.target, None, END_IDS), here.drafter)
    assert decoder.use_policy(folder) == []
    assert isinstance(decoder.controller, ExportedCycle)
    for case in CASES:
        if case.temperature == temperature:
            session = decoder.open_session(
                PROMPTS[case.prompt], max_new_tokens=TOKENS, temperature=temperature, seed=case.seed
            )
            list(session.run(decoder.controller))
            assert session.generated == text_of(case)
    assert decoder.controller.asked > 0


def test_a_decoder_refuses_a_policy_of_other_models(folder: Path) -> None:
    here = world(NAME)
    decoder = SpeculativeDecoder(LoadedModel("tiny", here.target, None, END_IDS), here.drafter)
    before = decoder.controller
    for name in ("target", "drafter"):
        prints = dict(info().fingerprints) | {name: "zz"}
        exported(folder, fingerprints=prints)
        with pytest.raises(ValueError, match=f"trained for {name} zz"):
            decoder.use_policy(folder)
    assert decoder.controller is before


def test_decisions_of_a_policy_are_its_own(folder: Path) -> None:
    """A controller asks with the policy's table, not with whatever another one has."""
    assert ExportedCycle.load(folder).decisions == DECISIONS
    raw = info().to_json()
    other = CyclePolicyInfo.from_json(raw)
    assert other == info()
    assert Decisions.from_json(raw["decisions"]) == DECISIONS
