"""A live comparison in blocks: a block is one prompt at one temperature, decoded by all arms one after the
other. The order is drawn beforehand; a block that other work on the machine disturbed is decoded again.

The rule, fixed before anything is timed: a block is disturbed if other processes used more than
`Rules.other_cores` cores while it ran. It is decoded again at the end of its repeat, at most `Rules.reruns`
times, and of its attempts the one with the least other load is kept, whatever its times are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from decoding.controller import PlainController
from decoding.forced import forced
from decoding.other_load import OtherLoad
from decoding.records import CycleRecord
from decoding.replay_session import ReplaySession
from decoding.session import Session
from decoding.workload import Request
from evaluation.block_store import BlockStore, Kept
from evaluation.orders import balanced_orders
from evaluation.protocol import WARM_UP_CYCLES, Arm, Observation, OpenSession, observe, warm_up


@dataclass(frozen=True, slots=True)
class Block:
    """One of a run's blocks.

    Attributes:
        number: unique in a run, in the order of decoding.
        repeat: 0-based; each is a process of its own.
        temperature: of the text's law.
        question_id: the prompt.
        order: names of the arms.
    """

    number: int
    repeat: int
    temperature: float
    question_id: str
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """How blocks are decoded, fixed before the first.

    Attributes:
        other_cores: more than so many cores used by other processes disturb a block.
        reruns: a disturbed block is decoded again at most so often.
        minutes: of a temperature's blocks; none begins after that. None = no limit.
        forced: repeats below this number are decoded on a forced text (`decoding/forced.py`): that of plain
            decoding, written anew in each block before anything is timed. For half precision.
    """

    other_cores: float = 0.25
    reruns: int = 2
    minutes: float | None = None
    forced: int = 0


def plan_blocks(
    names: Sequence[str],
    question_ids: Sequence[str],
    temperatures: Sequence[float],
    repeats: Iterable[int],
    rng: np.random.Generator,
    first: int = 0,
) -> list[Block]:
    """Every prompt at every temperature in each of the repeats: prompts in random order, arms in balanced
    random order (`protocol.balanced_orders`). Numbers begin with `first`."""
    orders = balanced_orders(len(names), rng)
    blocks: list[Block] = []
    for repeat in repeats:
        for place in rng.permutation(len(question_ids)):
            for temperature in temperatures:
                order = tuple(names[index] for index in next(orders))
                number = first + len(blocks)
                blocks.append(Block(number, repeat, temperature, question_ids[place], order))
    return blocks


def check_kept(kept: Mapping[int, Kept], blocks: Iterable[Block], store: BlockStore) -> None:
    """ValueError names a file whose block is none of these: another run's."""
    wanted = {
        block.number: [
            (name, block.question_id, block.temperature, block.repeat, place)
            for place, name in enumerate(block.order)
        ]
        for block in blocks
    }
    for number, one in kept.items():
        found = [
            (row.arm, row.question_id, row.temperature, row.repeat, row.place) for row in one.observations
        ]
        if found != wanted.get(number):
            raise ValueError(
                f"{store.path(number)} is of another run: remove it, and its block is decoded again"
            )


def run_blocks(
    blocks: Sequence[Block],
    arms: Mapping[float, Mapping[str, Arm]],
    requests: Mapping[str, Request],
    open_session: Callable[[float], OpenSession],
    store: BlockStore,
    rules: Rules,
    on_progress: Callable[[int, int, str], None] | None = None,
    others: Callable[[], OtherLoad] = OtherLoad,
) -> None:
    """Decode the blocks that the store does not hold yet, each whole or not at all, then the disturbed ones
    again. A killed run goes on from the block that it was at.

    Before anything is timed one whole request is decoded and discarded, and at every switch of arms a few
    cycles of the arm that comes.

    Args:
        arms: of each temperature, by name.
        requests: by question.
        open_session: for a temperature what opens fresh, prefilled sessions; equal requests must get equal
            seeds, or texts differ.
        on_progress: called with (done, total, note) outside of what is timed.
        others: measures the load of other processes.
    """
    if not blocks:
        return
    kept = store.kept()
    warm = False

    def decode(block: Block) -> Kept:
        nonlocal warm
        opener = open_session(block.temperature)
        some = [arms[block.temperature][name] for name in block.order]
        request = requests[block.question_id]
        if not warm:
            warm_up(some[0], request, opener, cycles=None)
            warm = True
        if block.repeat < rules.forced:
            some, opener = on_plain_text(some, request, opener)
        return _decode(block, some, request, opener, others)

    def spent(temperature: float) -> float:
        return sum(one.wall_seconds for one in kept.values() if one.temperature == temperature) / 60

    for done, block in enumerate(blocks):
        late = rules.minutes is not None and spent(block.temperature) >= rules.minutes
        if block.number not in kept and not late:
            kept[block.number] = store.keep(decode(block))
        if on_progress is not None:
            on_progress(done + 1, len(blocks), f"{block.question_id}, T {block.temperature:g}")
    for _ in range(rules.reruns):
        for block in blocks:
            before = kept.get(block.number)
            if before is None or before.other_cores <= rules.other_cores or before.attempts > rules.reruns:
                continue
            if on_progress is not None:
                on_progress(len(blocks), len(blocks), f"{block.question_id} again")
            kept[block.number] = store.keep(decode(block), before)


def on_plain_text(
    arms: Sequence[Arm], request: Request, open_session: OpenSession
) -> tuple[list[Arm], OpenSession]:
    """The same arms and opener on the text that plain decoding writes now."""
    session = open_session(request)
    for _ in session.run(PlainController()):
        pass
    text = list(session.generated)

    def opened(by: OpenSession, one: Request) -> Session | ReplaySession:
        begun = by(one)
        return forced(begun, text) if isinstance(begun, Session) else begun

    own = [
        arm if arm.open_session is None else replace(arm, open_session=partial(opened, arm.open_session))
        for arm in arms
    ]
    return own, partial(opened, open_session)


def _decode(
    block: Block,
    arms: Sequence[Arm],
    request: Request,
    open_session: OpenSession,
    others: Callable[[], OtherLoad],
) -> Kept:
    started, load = time.monotonic(), others()
    observations: list[Observation] = []
    records: list[Sequence[CycleRecord]] = []
    for place, arm in enumerate(arms):
        warm_up(arm, request, open_session, WARM_UP_CYCLES)
        where: dict[str, Any] = {"repeat": block.repeat, "block": block.number, "place": place}
        observation, cycles = observe(arm, request, open_session, block.temperature, **where)
        observations.append(observation)
        records.append(cycles)
    wall = time.monotonic() - started
    return Kept(block.number, block.temperature, 1, load.cores(), wall, observations, records)
