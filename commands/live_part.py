"""One repeat of a live evaluation, as a process of its own: `python -m commands.live_part PLAN REPEAT PID`,
PID of the evaluation, without which it ends.

A fresh process has memory laid out anew, its own threads and caches: what a whole process is lucky or unlucky
with is part of the spread between repeats, not of every number alike.
"""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # An interrupt while modules are imported ends it without a traceback; `exit_code` handles later ones.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commands.alone import alone_in
from commands.decoder import load_decoder
from commands.live_arms import ArmMaker, ArmSpec
from configs.command import exit_code, progress
from configs.schema import Config
from decoding.artifacts import read_json
from decoding.decisions import Decisions
from decoding.decoder import SpeculativeDecoder
from decoding.machine import use_threads
from decoding.profile import CostProfile
from decoding.workload import Request, load_workload
from evaluation.block_store import BlockStore
from evaluation.blocks import Block, Rules, run_blocks
from evaluation.protocol import OpenSession
from policies.baselines.offers import Offers

PLAN_FILE = "plan.json"
BLOCKS_FOLDER = "blocks"


@dataclass(frozen=True)
class Plan:
    """All that a repeat needs to know.

    Attributes:
        config, seed: of the run. Repeat r has sessions of seed + r, the same for all arms.
        decisions: that constants and expected gain follow. offers: what rules chose their constants from.
        profiles: profile.json files.
        policy: folder of the main policy, whose scores all arms have; None: the drafter's own.
        arms, blocks, rules: see there.
    """

    config: Config
    seed: int
    decisions: Decisions
    offers: Offers
    profiles: tuple[str, ...]
    policy: str | None
    arms: tuple[ArmSpec, ...]
    blocks: tuple[Block, ...]
    rules: Rules

    def to_json(self) -> dict[str, Any]:
        """The content of `plan.json`."""
        folders = [arm.how[name] for arm in self.arms for name in ("policy", "overridden") if name in arm.how]
        return {
            "digests": {path: digest(Path(path)) for path in (*self.profiles, *folders)},
            "config": self.config.model_dump(mode="json"),
            "seed": self.seed,
            "decisions": self.decisions.to_json(),
            "offers": asdict(self.offers),
            "profiles": list(self.profiles),
            "policy": self.policy,
            "arms": [arm.to_json() for arm in self.arms],
            "blocks": [asdict(block) | {"order": list(block.order)} for block in self.blocks],
            "rules": asdict(self.rules),
        }

    @classmethod
    def load(cls, path: Path) -> Plan:
        """ValueError if the file is missing or damaged."""
        raw = read_json(path, "plan")
        try:
            return cls(
                Config.model_validate(raw["config"]),
                raw["seed"],
                Decisions.from_json(raw["decisions"]),
                Offers(**{name: _tuple(value) for name, value in raw["offers"].items()}),
                tuple(raw["profiles"]),
                raw["policy"],
                tuple(ArmSpec.from_json(one) for one in raw["arms"]),
                tuple(Block(**one | {"order": tuple(one["order"])}) for one in raw["blocks"]),
                Rules(**raw["rules"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"plan {path} is damaged ({error}): remove its folder") from None


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def digest(path: Path) -> str:
    """SHA-256 of a file, or of the files of a folder."""
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(one.read_bytes() for one in files)).hexdigest()


def without_paths(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's JSON with files named by what they hold: moved, a run is the same, and of another policy under
    the same name it is another."""
    digests = raw.get("digests")
    text = json.dumps({name: value for name, value in raw.items() if name != "digests"})
    for path, value in digests.items() if isinstance(digests, dict) else ():
        text = text.replace(json.dumps(path), json.dumps(value))
    found: dict[str, Any] = json.loads(text)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Decode the repeat's blocks that are not there yet."""
    file, repeat, parent = sys.argv[1:] if arguments is None else arguments

    def run() -> None:
        with alone_in(Path(file).parent):  # a parent that was killed may have left one that still decodes
            run_part(Path(file), int(repeat), int(parent))

    return exit_code(run, "the same command goes on from there")


def run_part(file: Path, repeat: int, parent: int) -> None:
    """Load, make the arms, decode; end after the block at hand once the process `parent` is gone.

    Raises:
        ValueError: the plan is damaged, or a file that it names is another than when it was made.
    """
    plan = Plan.load(file)
    known = read_json(file, "plan")["digests"]
    for path in known:
        if digest(Path(path)) != known[path]:
            raise ValueError(f"{path} was changed while it was evaluated: put it back, or give another --out")
    blocks = [block for block in plan.blocks if block.repeat == repeat]
    use_threads(plan.config.threads)
    decoder = load_decoder(plan.config)
    if plan.policy is not None:
        decoder.use_policy(Path(plan.policy))  # its warnings were said when the plan was made

    def opener(by: SpeculativeDecoder, temperature: float) -> OpenSession:
        law = plan.config.sampling.law | {"temperature": temperature}
        most = plan.config.evaluation.max_new_tokens
        return lambda request: by.open_session(
            by.as_user(request.turns[0]), max_new_tokens=most, seed=plan.seed + repeat, **law
        )

    costs = [CostProfile.load(Path(path)) for path in plan.profiles]
    maker = ArmMaker(decoder, plan.decisions, costs, opener, plan.offers)
    names = {name for block in blocks for name in block.order}
    temperatures = sorted({block.temperature for block in blocks})
    arms = {
        temperature: {spec.name: maker.arm(spec, temperature) for spec in plan.arms if spec.name in names}
        for temperature in temperatures
    }
    with progress(f"repeat {repeat + 1}") as show:

        def tell(done: int, total: int, note: str) -> None:
            show(done, total, note)
            if os.getppid() != parent:
                raise KeyboardInterrupt

        run_blocks(
            blocks,
            arms,
            requests_of(plan.config, {block.question_id for block in blocks}),
            lambda temperature: opener(decoder, temperature),
            BlockStore(file.parent / BLOCKS_FOLDER),
            plan.rules,
            tell,
        )


def requests_of(config: Config, questions: set[str]) -> Mapping[str, Request]:
    """Of the workload, by question."""
    return {
        one.question_id: one for one in load_workload(config.workload.files) if one.question_id in questions
    }


if __name__ == "__main__":
    sys.exit(main())
