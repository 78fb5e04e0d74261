"""Blocks of a live comparison: planned beforehand, kept whole, resumed, decoded again where disturbed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding.records import CycleRecord, PhaseSeconds
from decoding.workload import Request
from evaluation.block_store import BlockStore, Kept, rows_of
from evaluation.blocks import Block, Rules, plan_blocks, run_blocks
from evaluation.protocol import WARM_UP_CYCLES, Arm

NAMES = ["plain", "a", "b", "c"]
QUESTIONS = ["q0", "q1", "q2"]
TEMPERATURES = [0.0, 1.0]


class FakeSession:
    """Ten cycles of one token; notes who decoded how many of them."""

    prefill_seconds = 0.5

    def __init__(self, log: list[list[Any]], temperature: float) -> None:
        self.log, self.generated = log, list[int]()
        self.temperature = temperature

    def run(self, controller: Any) -> Iterator[CycleRecord]:
        entry = [controller, 0]
        self.log.append(entry)
        for token in range(10):
            entry[1] += 1
            self.generated.append(token)
            seconds = PhaseSeconds(draft=0.001, verify=0.01 + self.temperature)
            yield CycleRecord(1, 2, (True, False), (token,), 5 + token, seconds)


class FakeOthers:
    """Cores that others use, one number for each block that is decoded."""

    def __init__(self, cores: float) -> None:
        self._cores = cores

    def cores(self) -> float:
        return self._cores


class World:
    """Arms that decode fakes, and what they did."""

    def __init__(self, folder: Path, loads: list[float] | None = None) -> None:
        self.log: list[list[Any]] = []
        self.store = BlockStore(folder)
        self._loads = iter(loads or [0.0] * 1000)
        kinds = {name: "plain" if name == "plain" else "rule" for name in NAMES}
        arms = {name: Arm(name, lambda name=name: name, kind) for name, kind in kinds.items()}  # type: ignore
        self.arms = dict.fromkeys(TEMPERATURES, arms)
        self.requests = {name: Request(name, ("x",), "chat", None, name) for name in QUESTIONS}

    def run(self, blocks: list[Block], rules: Rules | None = None) -> None:
        run_blocks(
            blocks,
            self.arms,
            self.requests,
            lambda temperature: lambda request: FakeSession(self.log, temperature),  # type: ignore
            self.store,
            rules or Rules(),
            others=lambda: FakeOthers(next(self._loads)),  # type: ignore
        )

    def decoded(self) -> int:
        """Whole texts, warm-ups left out."""
        return sum(count == 10 for _, count in self.log)


def plan(repeats: int = 2) -> list[Block]:
    return plan_blocks(NAMES, QUESTIONS, TEMPERATURES, range(repeats), np.random.default_rng(0))


def test_every_prompt_meets_every_temperature_in_every_repeat_and_orders_are_balanced() -> None:
    blocks = plan(4)
    assert [block.number for block in blocks] == list(range(4 * 6))
    cells = Counter((block.repeat, block.temperature, block.question_id) for block in blocks)
    assert set(cells.values()) == {1}
    assert len(cells) == 24
    assert all(sorted(block.order) == sorted(NAMES) for block in blocks)
    first = Counter(block.order[0] for block in blocks)
    assert set(first.values()) == {6}  # 24 blocks are six whole squares
    assert [block.repeat for block in blocks] == sorted(block.repeat for block in blocks)
    questions = [[block.question_id for block in blocks if block.repeat == repeat] for repeat in range(4)]
    assert len({tuple(order) for order in questions}) > 1
    later = plan_blocks(NAMES, ["q0"], [0.0], [7], np.random.default_rng(0), first=100)
    assert [(block.number, block.repeat) for block in later] == [(100, 7)]


def test_what_is_kept_is_what_was_decoded(tmp_path: Path) -> None:
    world = World(tmp_path)
    blocks = plan()
    world.run(blocks)
    kept = world.store.kept()
    assert list(kept) == [block.number for block in blocks]
    for block in blocks:
        mine = kept[block.number]
        assert [one.arm for one in mine.observations] == list(block.order)
        assert [one.place for one in mine.observations] == [0, 1, 2, 3]
        for one in mine.observations:
            assert (one.repeat, one.block, one.temperature) == (block.repeat, block.number, block.temperature)
            assert (one.question_id, one.category) == (block.question_id, "chat")
            assert one.seconds == pytest.approx(10 * (0.011 + block.temperature))
            assert one.emitted == 10
        assert all(len(records) == 10 for records in mine.records)
    rows = rows_of(kept)
    assert len(rows) == 12 * 4 * 10
    assert rows[3]["context_length"] == 8
    assert rows[3]["accepted_by_depth"] == [True, False]
    # One whole request first, and a few cycles at every switch of arms.
    short = [count for _, count in world.log if count < 10]
    assert short == [WARM_UP_CYCLES] * 12 * 4
    assert world.decoded() == 12 * 4 + 1


def test_a_killed_run_goes_on_and_decodes_nothing_twice(tmp_path: Path) -> None:
    blocks = plan()
    World(tmp_path).run(blocks[:5])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = World(tmp_path)
    again.run(blocks)
    assert again.decoded() == 7 * 4 + 1
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    done = World(tmp_path)
    done.run(blocks)
    assert done.log == []  # not even a warm-up


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.requests.pop("q1")
    with pytest.raises(KeyError):
        world.run(plan())
    numbers = [block.number for block in plan() if block.question_id != "q1"]
    assert set(world.store.kept()) <= set(numbers)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_disturbed_block_is_decoded_again_and_the_calmest_attempt_is_kept(tmp_path: Path) -> None:
    blocks = plan(1)
    # Blocks 1 and 4 are disturbed; the first calms down at the second rerun, the other never does.
    world = World(tmp_path, [0, 0.9, 0, 0, 0.5, 0, 0.4, 0.7, 0.1, 0.6])
    world.run(blocks, Rules(other_cores=0.25, reruns=2))
    kept = world.store.kept()
    assert {number: (one.attempts, one.other_cores) for number, one in kept.items()} == {
        0: (1, 0),
        1: (3, 0.1),
        2: (1, 0),
        3: (1, 0),
        4: (3, 0.5),
        5: (1, 0),
    }
    quiet = World(tmp_path)
    quiet.run(blocks, Rules(other_cores=0.25, reruns=2))
    assert quiet.decoded() == 0  # the rule's attempts are used up


def test_without_reruns_and_below_the_limit_nothing_is_decoded_again(tmp_path: Path) -> None:
    world = World(tmp_path, [0.25] * 6)
    world.run(plan(1), Rules(other_cores=0.25, reruns=2))
    assert world.decoded() == 6 * 4 + 1
    other = World(tmp_path / "other", [9.0] * 6)
    other.run(plan(1), Rules(other_cores=0.25, reruns=0))
    assert other.decoded() == 6 * 4 + 1


def test_no_block_of_a_temperature_begins_after_its_minutes(tmp_path: Path) -> None:
    world = World(tmp_path)
    blocks = plan()
    cold = [block for block in blocks if block.temperature == 0]
    world.run(cold[:2])
    for one in world.store.kept().values():
        world.store.keep(Kept(one.number, 0.0, 1, 0.0, 31.0, one.observations, one.records))
    World(tmp_path).run(blocks, Rules(minutes=1.0))
    kept = World(tmp_path).store.kept()
    assert sum(one.temperature == 0 for one in kept.values()) == 2
    assert sum(one.temperature == 1 for one in kept.values()) == 6


@pytest.mark.parametrize("damage", [b"", b"PAR1 and nothing", None])
def test_a_damaged_block_is_named(damage: bytes | None, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(plan()[:1])
    path = tmp_path / "block-000000.parquet"
    path.write_bytes(path.read_bytes()[:-50] if damage is None else damage)
    with pytest.raises(ValueError, match=r"block-000000.parquet is damaged .*: remove it") as raised:
        world.store.kept()
    assert "\n" not in str(raised.value)
