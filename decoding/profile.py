"""The cost profile: what each part of a cycle takes on one machine with one pair of models, in seconds.

`profile.json`, schema 1. Costs are indexed by rows and not assumed to rise with them: two rows can cost more
than eight.

Legend: N cycles asked about, K contexts measured, R row counts measured, D draft levels, P counts of tokens
to digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from decoding.artifacts import read_json, write_json
from decoding.piecewise import along
from decoding.profile_checks import check_counts, check_numbers, check_table, tuples, whole

SCHEMA_VERSION = 1
PROFILE_FILE = "profile.json"
EVERY_ROW_COUNT_TO = 17

Source = Literal["head", "lookup"]
SOURCES: tuple[Source, ...] = get_args(Source)
Row = tuple[float, ...]
Table = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What costs were measured under. `dtype` as torch names it without its prefix; `path`: fast or eager;
    `beam_width` None: the drafter has no beam."""

    device: str
    dtype: str
    path: str
    threads: int
    temperature: float
    drafter: str
    beam_width: int | None

    def __post_init__(self) -> None:
        for name in ("device", "dtype", "path", "drafter"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be text")
        check_counts("threads", (self.threads,))
        check_counts("beam_width", (1 if self.beam_width is None else self.beam_width,))
        check_numbers("temperature", (self.temperature,), 1)


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Costs in seconds, every one a median.

    Between two measured contexts costs are linear; below the shortest they are its own; above the longest the
    last slope goes on, never downwards. Between two measured row counts they are linear too.

    Attributes:
        fingerprints: of `target`, `drafter` and `tokenizer`.
        contexts: K, ascending. rows: R, ascending, every count up to 17 or the last, whichever is less.
        start: (K) before the first question of a cycle.
        levels: by what drafts, (D, K): of each draft level, the first first.
        digest_tokens: P, ascending, from 1. digest: (P) what the head's first level takes more than after one
            token, if so many were committed since it last drafted; beyond the last its slope goes on.
        selection: a constant, and what each drafted level and each selected node adds.
        verification: (R, K), of one emitted token. verification_token: what each further one adds.
        commit: of one emitted token, and what each further one adds.
        policy: of one question to a fixed controller.
        spread: of each part, a row for each of its counts: first and third quartile of measured / predicted.
        note: how it was measured and checked; for people.
    """

    fingerprints: Mapping[str, str]
    conditions: Conditions
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    start: Row
    levels: Mapping[str, Table]
    digest_tokens: tuple[int, ...]
    digest: Row
    selection: Row
    verification: Table
    verification_token: float
    commit: Row
    policy: float
    spread: Mapping[str, Table] = field(default_factory=dict)
    note: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.fingerprints, Mapping) or not isinstance(self.levels, Mapping):
            raise ValueError("fingerprints and levels must be objects, by name")
        if set(self.fingerprints) != {"target", "drafter", "tokenizer"}:
            named = ", ".join(sorted(self.fingerprints)) or "nothing"
            raise ValueError(f"fingerprints are of {named}, must be of target, drafter and tokenizer")
        for name in ("contexts", "rows", "digest_tokens"):
            check_counts(name, getattr(self, name))
        for count in range(1, min(EVERY_ROW_COUNT_TO, self.rows[-1]) + 1):
            if count not in self.rows:
                raise ValueError(
                    f"rows lacks {count}, must hold every count up to {EVERY_ROW_COUNT_TO} or its last"
                )
        if self.digest_tokens[0] != 1:
            raise ValueError(f"digest_tokens begins with {self.digest_tokens[0]}, must begin with 1")
        if not self.levels or not set(self.levels) <= set(SOURCES):
            raise ValueError(f"levels are of {sorted(self.levels)}, must be of {' or '.join(SOURCES)}")
        contexts = len(self.contexts)
        check_numbers("start", self.start, contexts)
        check_numbers("digest", self.digest, len(self.digest_tokens))
        check_numbers("selection", self.selection, 3)
        check_numbers("commit", self.commit, 2)
        check_numbers("policy", (self.policy,), 1)
        check_numbers("verification_token", (self.verification_token,), 1)
        for source, table in self.levels.items():
            check_table(f"levels of the {source}", table, len(table), contexts)
        check_table("verification", self.verification, len(self.rows), contexts)
        for part, table in self.spread.items():
            check_table(f"spread of {part}", table, len(table), 2)

    @property
    def max_size(self) -> int:
        """Largest `verification_size` that it can predict."""
        return self.rows[-1] - 1

    def source(self, lookup_alone: bool) -> Source:
        """Whose levels cost what a draft by the lookup alone, or by the head, does: the other's where it was
        measured with one of them only."""
        wanted: Source = "lookup" if lookup_alone else "head"
        other: Source = "head" if lookup_alone else "lookup"
        return wanted if wanted in self.levels else other

    def start_seconds(self, context: ArrayLike) -> np.ndarray:
        """(N) before the first question, `context` (N) tokens being committed."""
        context_N = whole("context", context, 1)
        return along(np.array([self.start]), np.zeros_like(context_N), context_N, self.contexts)

    def level_seconds(
        self, level: ArrayLike, context: ArrayLike, emitted_before: ArrayLike = 1, source: Source = "head"
    ) -> np.ndarray:
        """(N) of draft level `level` >= 1. `emitted_before`: tokens committed since the head last drafted: in
        the last cycle, and in those before it back to the last that the head drafted in."""
        if source not in self.levels:
            raise ValueError(f"source is {source!r}, the profile has {', '.join(self.levels)}")
        table = self.levels[source]
        given = np.broadcast_arrays(
            whole("level", level, 1, len(table)),
            whole("context", context, 1),
            whole("emitted_before", emitted_before, 1),
        )
        level_N, context_N, before_N = given
        seconds_N = along(np.array(table), level_N - 1, context_N, self.contexts)
        if source == "head":
            extra_N = along(np.array([self.digest]), np.zeros_like(level_N), before_N, self.digest_tokens)
            seconds_N = seconds_N + np.where(level_N == 1, extra_N, 0.0)
        return seconds_N

    def selection_seconds(self, draft_depth: ArrayLike, size: ArrayLike) -> np.ndarray:
        """(N) of choosing `size` nodes of a draft of `draft_depth` levels."""
        depth_N, size_N = np.broadcast_arrays(whole("draft_depth", draft_depth, 0), whole("size", size, 0))
        base, per_level, per_node = self.selection
        return base + per_level * depth_N + per_node * size_N

    def verification_seconds(self, rows: ArrayLike, context: ArrayLike, emitted: ArrayLike = 1) -> np.ndarray:
        """(N) of a target forward over `rows` = size + 1 rows that ends in `emitted` tokens."""
        given = np.broadcast_arrays(
            whole("rows", rows, 1, self.rows[-1]),
            whole("context", context, 1),
            whole("emitted", emitted, 1),
        )
        rows_N, context_N, emitted_N = given
        table = np.array(self.verification)
        above_N = np.searchsorted(self.rows, rows_N)
        below_N = np.maximum(above_N - 1, 0)
        known_N = np.array(self.rows)
        share_N = (rows_N - known_N[below_N]) / np.maximum(known_N[above_N] - known_N[below_N], 1)
        low_N = along(table, below_N, context_N, self.contexts)
        high_N = along(table, above_N, context_N, self.contexts)
        # At a measured count exactly its own cost, whatever its neighbours are.
        seconds_N = np.where(share_N == 1, high_N, low_N + share_N * (high_N - low_N))
        seconds_N = np.where(above_N == 0, high_N, seconds_N)
        return seconds_N + self.verification_token * (emitted_N - 1)

    def commit_seconds(self, emitted: ArrayLike = 1) -> np.ndarray:
        """(N) of keeping `emitted` tokens."""
        return self.commit[0] + self.commit[1] * (whole("emitted", emitted, 1) - 1)

    def cycle_seconds(
        self,
        draft_depth: ArrayLike,
        size: ArrayLike,
        context: ArrayLike,
        emitted_before: ArrayLike = 1,
        emitted: ArrayLike = 1,
        source: Source = "head",
        questions: ArrayLike | None = None,
    ) -> np.ndarray:
        """(N) of a whole cycle; arguments as above, broadcast. Depth 0 is a plain step, of size 0.

        `questions`: that the controller is asked; None = what a fixed one is: one in a plain step, else one
        before the draft, one after each level and one for the size.
        """
        depth_N, size_N, context_N, before_N, emitted_N = np.broadcast_arrays(
            whole("draft_depth", draft_depth, 0), *map(np.asarray, (size, context, emitted_before, emitted))
        )
        asked_N = np.where(depth_N == 0, 1, depth_N + 2) if questions is None else np.asarray(questions)
        seconds_N = self.start_seconds(context_N) + self.policy * asked_N
        for level in range(1, int(depth_N.max(initial=0)) + 1):
            drafted_N = self.level_seconds(level, context_N, before_N, source)
            seconds_N = seconds_N + np.where(depth_N >= level, drafted_N, 0.0)
        seconds_N = seconds_N + self.selection_seconds(depth_N, size_N) + self.commit_seconds(emitted_N)
        return seconds_N + self.verification_seconds(size_N + 1, context_N, emitted_N)

    def cheapest_size(self, size: int, context: int | None = None) -> int:
        """The size at or above `size` that is verified fastest; the added rows carry the next-best nodes. Of
        equals the smallest. `context` None: the middle one of those measured."""
        given = int(whole("size", size, 0, self.max_size))
        at = self.contexts[len(self.contexts) // 2] if context is None else context
        sizes = [given, *(rows - 1 for rows in self.rows if rows - 1 > given)]
        return sizes[int(np.argmin(self.verification_seconds(np.array(sizes) + 1, at)))]

    def check_matches(self, fingerprints: Mapping[str, str], conditions: Conditions) -> list[str]:
        """ValueError if it was measured on other models; else one warning for each other difference."""
        for what, measured in self.fingerprints.items():
            if fingerprints[what] != measured:
                raise ValueError(
                    f"the profile was measured on {what} {measured}, this is {fingerprints[what]}: "
                    "profile again with python train.py profile"
                )
        then, now = asdict(self.conditions), asdict(conditions)
        return [
            f"the profile was measured with {name} {then[name]}, this is {now[name]}: its times may not fit"
            for name in then
            if name != "drafter" and then[name] != now[name]
        ]

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> CostProfile:
        """The inverse of `to_json`. KeyError, TypeError or ValueError if `raw` is something else."""
        if raw["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {raw['schema_version']!r}, this code reads {SCHEMA_VERSION}")
        known = {one.name for one in fields(cls)}
        if unknown := raw.keys() - known - {"schema_version"}:
            raise ValueError(f"unknown keys {', '.join(sorted(unknown))}")
        kept = {name: tuples(raw[name]) for name in known - {"conditions", "note"}}
        return cls(**kept, conditions=Conditions(**raw["conditions"]), note=dict(raw["note"]))

    def save(self, folder: Path) -> None:
        """Write `profile.json` into `folder`, atomically."""
        write_json(folder / PROFILE_FILE, self.to_json())

    @classmethod
    def load(cls, path: Path) -> CostProfile:
        """The profile in a file; one-line ValueError if there is none, or it cannot be used."""
        raw = read_json(path, "profile")
        try:
            return cls.from_json(raw)
        except KeyError as error:
            raise ValueError(f"profile {path} lacks {error}: profile again") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"profile {path} cannot be used ({error}): profile again") from None
