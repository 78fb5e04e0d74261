"""The target's states of texts: the same from memory, from disk and computed, and never another target's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import decoding.artifacts
from decoding import head_batches
from decoding.artifacts import save_tensors
from decoding.head_batches import StateCache, States, group_alike
from decoding.target import TargetModel
from tests.fakes import tiny_target
from tests.head_world import many_texts, texts

LAYERS = (2, 1, 1)


class Counting(TargetModel):
    """A target that notes how many texts it was asked for."""

    asked: list[int]

    def states(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked.append(len(ids_BT))
        return super().states(ids_BT)


def counting(seed: int = 6, layers: tuple[int, ...] = LAYERS) -> Counting:
    made = Counting(tiny_target(seed=seed, dtype=torch.float32, layers=2).model, layers)
    made.asked = []
    return made


def equal(one: list[States], other: list[States]) -> bool:
    pairs = [(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)]
    return all(torch.equal(a, b) for a, b in pairs)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_states_are_the_same_from_memory_from_disk_and_computed(tmp_path: Path) -> None:
    chosen, target = texts()[:3], counting()
    cache = StateCache(target, tmp_path)
    computed = cache.states(chosen)
    for text, (features, finals) in zip(chosen, computed, strict=True):
        assert (features.shape, finals.shape) == ((len(text) - 1, 96), (len(text) - 1, 32))
        assert features.dtype == finals.dtype == torch.bfloat16
    assert target.asked == [3]
    assert equal(cache.states(chosen), computed)
    assert equal(StateCache(target, tmp_path).states(chosen), computed)
    assert target.asked == [3], "memory and disk hold them all"
    assert equal(StateCache(target, None).states(chosen), computed)
    assert target.asked == [3, 3]


def test_states_come_in_the_order_of_the_texts_and_only_new_ones_are_computed(tmp_path: Path) -> None:
    """One from memory, one new that stands twice, one from disk."""
    one, two, three = texts()[:3]
    target = counting()
    expected = [StateCache(target, None).states([text])[0] for text in (one, two, two, three)]
    StateCache(target, tmp_path).states([three])
    cache = StateCache(target, tmp_path)
    cache.states([one])
    target.asked.clear()
    for (features, finals), (wanted, wanted_finals) in zip(
        cache.states([one, two, two, three]), expected, strict=True
    ):
        torch.testing.assert_close(features, wanted)
        torch.testing.assert_close(finals, wanted_finals)
    assert target.asked == [1]


def test_states_of_other_layers_or_another_target_are_other_files(tmp_path: Path) -> None:
    chosen = texts()[:2]
    found = []
    for number, target in enumerate((counting(), counting(layers=(1, 2, 2)), counting(seed=7)), start=1):
        found.append(StateCache(target, tmp_path).states(chosen))
        assert target.asked == [2]
        assert len(files(tmp_path)) == 2 * number
    assert not equal(found[0], found[1])
    assert not equal(found[0], found[2])
    assert equal(StateCache(counting(), tmp_path).states(chosen), found[0])


@pytest.mark.parametrize("damage", ["truncated", "empty", "other tensors"])
def test_a_damaged_file_is_computed_again_and_written_over(tmp_path: Path, damage: str) -> None:
    chosen = texts()[:1]
    computed = StateCache(counting(), tmp_path).states(chosen)
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    if damage == "other tensors":
        save_tensors(file, {"features": torch.zeros(3)})
    else:
        file.write_bytes(whole[:-7] if damage == "truncated" else b"")
    target = counting()
    assert equal(StateCache(target, tmp_path).states(chosen), computed)
    assert target.asked == [1]
    assert file.read_bytes() == whole


def test_a_half_written_file_never_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it writes: what is left does not bear the name that is looked for."""

    def killed(_tensors: object, path: Path, **_more: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(decoding.artifacts, "save_file", killed)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process clears nothing away
        with pytest.raises(KeyboardInterrupt):
            StateCache(counting(), tmp_path).states(texts()[:1])
    assert files(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 1
    target = counting()
    StateCache(target, tmp_path).states(texts()[:1])
    assert target.asked == [1]
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("on_disk", [True, False])
def test_memory_holds_no_more_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool
) -> None:
    """What does not fit is read again, or computed again where there is no folder."""
    chosen, target = [text[:9] for text in texts()[:3]], counting()
    a_text = 8 * (96 + 32) * 2
    monkeypatch.setattr(head_batches, "_MEMORY_BYTES", 2 * a_text + 5)
    cache = StateCache(target, tmp_path if on_disk else None)
    computed = cache.states(chosen)
    for again, before in zip(cache.states(chosen), computed, strict=True):
        torch.testing.assert_close(again, before)
    assert target.asked == ([3] if on_disk else [3, 1])
    held = sum(part.numel() * part.element_size() for states in cache._kept.values() for part in states)
    assert held == 2 * a_text


def test_batches_hold_every_text_once_and_no_more_tokens_than_asked() -> None:
    order = np.random.default_rng(1).permutation(80)
    batches = group_alike(many_texts(), order, 48)
    assert sorted(np.concatenate(batches).tolist()) == list(range(80))
    for batch in batches:
        assert len(batch) * max(len(many_texts()[number]) for number in batch) <= 48
