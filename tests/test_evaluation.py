"""Arms decode interleaved, and the report says what they did: end to end on tiny models, and by hand."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fakes import END_ID, VOCABULARY, OracleDrafter, tiny_eagle, tiny_target
from made_up import LEARNED, MAX_NEW_TOKENS, PLAIN, REQUESTS, fixed, printed, report_of

from decoding.controller import Controller, DraftView, PlainController
from decoding.records import CycleRecord, PhaseSeconds
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.workload import Request
from evaluation.orders import balanced_orders
from evaluation.protocol import WARM_UP_CYCLES, Arm, Observation, run_arms
from evaluation.report import write_report
from evaluation.schema import Report


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- end to end -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> SimpleNamespace:
    target = tiny_target()
    eagle = tiny_eagle(target)

    def opener(drafter: Callable[[Request], Any], seed: int = 3) -> Callable[[Request], Session]:
        return lambda request: Session(
            target,
            drafter(request),
            [byte % VOCABULARY for byte in request.turns[0].encode()],
            max_new_tokens=MAX_NEW_TOKENS,
            end_ids={END_ID},
            sampling=Sampling(temperature=0.7),
            seed=seed,
        )

    texts = {}
    for request in REQUESTS:
        session = opener(lambda _: eagle)(request)
        for _ in session.run(PlainController()):
            pass
        texts[request] = session.generated
    oracle = opener(lambda request: OracleDrafter(texts[request]))
    arms = [PLAIN, fixed(1, 2), fixed(3, 4), fixed(4, 4, "oracle", open_session=oracle), LEARNED]
    raw: list[dict[str, Any]] = []
    seen: list[tuple[int, int, str]] = []
    observations = run_arms(
        arms,
        REQUESTS,
        opener(lambda _: eagle),
        2,
        np.random.default_rng(0),
        lambda done, total, row: seen.append((done, total, row.arm)),
        raw,
    )
    return SimpleNamespace(
        arms=arms, observations=observations, raw=raw, seen=seen, texts=texts, opener=opener
    )


def test_every_arm_decodes_every_request_and_every_text_is_plains(run: SimpleNamespace) -> None:
    rows = run.observations
    assert Counter(row.arm for row in rows) == {arm.name: 6 for arm in run.arms}
    assert {(row.question_id, row.repeat) for row in rows} == {
        (request.question_id, repeat) for request in REQUESTS for repeat in range(2)
    }
    for request in REQUESTS:
        mine = [row for row in rows if row.question_id == request.question_id]
        assert len({row.token_hash for row in mine}) == 1
        assert {row.emitted for row in mine} == {len(run.texts[request])}
        assert {(row.group, row.category, row.language) for row in mine} == {
            (request.group, request.category, request.language)
        }
    assert run.seen == [(number, 30, row.arm) for number, row in enumerate(rows, start=1)]
    result = report_of(run.arms, rows).arms
    assert all(arm.text_equal and arm.texts_unequal == 0 for arm in result.values())
    assert result["plain"].tau == 1
    assert result["oracle 4 x 4"].tau > 2  # nothing it drafts is wrong


def test_seconds_are_those_of_the_cycles(run: SimpleNamespace) -> None:
    for row in run.observations:
        cycles = [cycle for cycle in run.raw if (cycle["block"], cycle["arm"]) == (row.block, row.arm)]
        phases = [value for cycle in cycles for name, value in cycle.items() if name.endswith("_seconds")]
        assert row.seconds == pytest.approx(sum(phases))
        assert row.emitted == sum(cycle["emitted"] for cycle in cycles)
        assert [cycle["cycle"] for cycle in cycles] == list(range(row.cycles.cycles))
        assert row.prefill_seconds > 0
        assert row.load >= 0


def test_a_text_that_differs_from_plains_is_reported(run: SimpleNamespace) -> None:
    # the same drafter under another seed: other noise, other text
    other = Arm(
        "other", PlainController, "rule", open_session=run.opener(lambda _: OracleDrafter([]), seed=4)
    )
    rows = run_arms([PLAIN, other], REQUESTS, run.arms[3].open_session, 1, np.random.default_rng(0))
    result = report_of([PLAIN, other], rows)
    assert not result.arms["other"].text_equal
    assert result.arms["other"].texts_unequal == 3
    assert "no (3 of 3)" in printed(result)
    assert "other wrote other tokens" in printed(result)


def test_files_say_the_same_as_the_observations(run: SimpleNamespace, tmp_path: Path) -> None:
    report = report_of(run.arms, run.observations)
    write_report(tmp_path, report, run.raw)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cycles.parquet", "report.json"]
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    assert Report.model_validate_json(text) == report
    table = pq.read_table(tmp_path / "cycles.parquet").to_pylist()
    assert table == run.raw
    for name, arm in report.arms.items():
        mine = [row for row in table if row["arm"] == name]
        seconds = sum(value for row in mine for key, value in row.items() if key.endswith("_seconds"))
        assert arm.tokens_per_second == pytest.approx(sum(row["emitted"] for row in mine) / seconds)
        assert arm.tau == pytest.approx(sum(row["emitted"] for row in mine) / len(mine))
        plain = report.arms["plain"].tokens_per_second
        assert arm.speedup_vs_plain == pytest.approx(arm.tokens_per_second / plain)
        policy = sum(row["policy_seconds"] for row in mine)
        assert arm.policy_overhead_fraction == pytest.approx(policy / seconds)
    assert [point.tokens_per_second for point in report.grid] == [
        report.arms[name].tokens_per_second for name in ("eagle 1 x 2", "eagle 3 x 4", "oracle 4 x 4")
    ]
    best = max(report.grid, key=lambda point: point.tokens_per_second)
    name = f"{best.drafter} {best.draft_depth} x {best.verification_size}"
    pairs = [("learned", name), ("learned", "plain"), (name, "plain")]
    assert [(row.a, row.b) for row in report.comparisons] == pairs


def test_categories_and_languages_are_reported_apart(run: SimpleNamespace) -> None:
    report = report_of(run.arms, run.observations)
    assert {name: arms["plain"].requests for name, arms in report.by_category.items()} == {
        "chat": 4,
        "maths": 2,
    }
    assert {name: arms["plain"].requests for name, arms in report.by_language.items()} == {"en": 4, "it": 2}
    rows = [row for row in run.observations if row.category == "maths"]
    alone = report_of(run.arms, rows).arms["learned"]
    assert report.by_category["maths"]["learned"].model_dump().items() <= alone.model_dump().items()


# --- order, warm-up, faults -------------------------------------------------------------------------------


class FakeSession:
    """Ten cycles of one token; notes in `log` who decoded how many of them."""

    prefill_seconds = 100.0

    def __init__(self, log: list[list[Any]]) -> None:
        self.log = log
        self.generated: list[int] = []

    def run(self, controller: Any) -> Iterator[CycleRecord]:
        entry = [controller, 0]
        self.log.append(entry)
        for token in range(10):
            entry[1] += 1
            self.generated.append(token)
            yield CycleRecord(0, 0, (), (token,), 5, PhaseSeconds(verify=0.01))


def fake_run(count: int, requests: int, repeats: int = 1) -> tuple[list[list[Any]], list[Observation]]:
    log: list[list[Any]] = []
    names = ["plain", *(f"arm{number}" for number in range(1, count))]
    arms = [Arm(n, lambda n=n: n, "plain" if n == "plain" else "rule") for n in names]  # type: ignore[misc]
    asked = [Request(f"q{number}", ("x",), None, None, f"q{number}") for number in range(requests)]
    opened: Any = lambda request: FakeSession(log)  # noqa: E731
    return log, run_arms(arms, asked, opened, repeats, np.random.default_rng(1))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_a_square_of_orders_is_balanced(count: int) -> None:
    orders = balanced_orders(count, np.random.default_rng(0))
    length = 2 * count if count % 2 and count > 1 else count
    square = [next(orders) for _ in range(length)]
    assert all(sorted(order) == list(range(count)) for order in square)
    places = Counter((place, arm) for order in square for place, arm in enumerate(order))
    assert set(places.values()) == {length // count}
    follows = Counter(pair for order in square for pair in pairwise(order))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) <= 1
    if count > 3:
        assert [next(orders) for _ in range(length)] != square  # a fresh draw, not the same square again


def test_arms_are_interleaved_and_each_takes_every_place() -> None:
    _, rows = fake_run(4, requests=2, repeats=2)
    assert [row.block for row in rows] == [block for block in range(4) for _ in range(4)]
    assert [row.place for row in rows] == list(range(4)) * 4
    assert [row.repeat for row in rows] == [0] * 8 + [1] * 8
    for arm in ("plain", "arm1", "arm2", "arm3"):
        assert sorted(row.place for row in rows if row.arm == arm) == [0, 1, 2, 3]


def test_warm_ups_come_first_and_are_discarded() -> None:
    log, rows = fake_run(3, requests=2)
    assert log[0] == ["plain", 10]  # a whole request, before anything else
    assert len(log) == 1 + 3 + len(rows)
    seen: Counter[str] = Counter()
    for name, cycles in log[1:]:
        seen[name] += 1
        assert cycles == (WARM_UP_CYCLES if seen[name] == 1 else 10), name
    assert len(rows) == 6
    assert {row.cycles.cycles for row in rows} == {10}
    assert [row.seconds for row in rows] == [pytest.approx(0.1)] * 6  # the prefill's 100 s are no part of it


class Broken(PlainController):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def wants_draft(self, view: DraftView) -> bool:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("NaN logits")])
def test_an_arm_that_fails_ends_the_run_and_is_named(error: Exception, run: SimpleNamespace) -> None:
    def factory() -> Controller:
        return Broken(error)

    with pytest.raises(type(error), match=str(error)) as caught:
        run_arms(
            [PLAIN, Arm("broken", factory, "learned")],
            REQUESTS,
            run.opener(lambda _: OracleDrafter([1] * MAX_NEW_TOKENS)),
            1,
            np.random.default_rng(0),
        )
    said = f"{caught.value} {getattr(caught.value, '__notes__', '')}"
    assert "arm 'broken' on question 'q1'" in said
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arms", "requests", "repeats", "says"),
    [
        ([PLAIN, PLAIN], REQUESTS, 1, "names of their own"),
        ([LEARNED], REQUESTS, 1, "exactly one arm must be plain"),
        ([PLAIN, replace(fixed(1, 1), setting=None)], REQUESTS, 1, "a setting goes with fixed arms"),
        ([PLAIN], [], 1, "no requests"),
        ([PLAIN], REQUESTS, 0, "repeats is 0"),
    ],
)
def test_what_cannot_be_run_is_refused(arms: Any, requests: Any, repeats: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        run_arms(arms, requests, lambda request: pytest.fail("opened"), repeats, np.random.default_rng(0))
