"""Two policies trained in turns, each beside the other's frozen network; resumed exactly after a kill.

A turn is one PPO training with checkpoints of its own, a function of the seed, the weights that it goes on
from and the frozen partner: so a run that is begun again walks over its finished turns and goes on in the one
that was interrupted, as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from stable_baselines3 import PPO

from decoding.exported import Network
from policies import checkpoint
from policies.export import network_of
from policies.ppo import PPOSettings, is_finished, load_trained, train

Kind = Literal["depth", "size"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Turn:
    """One training.

    Attributes:
        name: unique; also the name of its folder.
        kind: the policy that learns.
        start: the turn whose weights it goes on from; None: it begins with fresh ones.
        partner: the turn whose network, frozen, takes the other decision; None: a partner that is no policy.
    """

    name: str
    kind: Kind
    start: str | None = None
    partner: str | None = None


def turns(rounds: int) -> tuple[Turn, ...]:
    """First each policy beside a partner that is none, the size policy first; then in every round each beside
    the other's last network."""
    plan = [Turn("size", "size"), Turn("depth", "depth")]
    last: dict[Kind, str] = {"size": "size", "depth": "depth"}
    for number in range(1, rounds + 1):
        for kind, other in (("size", "depth"), ("depth", "size")):
            turn = Turn(f"round-{number}-{kind}", kind, last[kind], last[other])  # type: ignore[arg-type, index]
            plan.append(turn)
            last[turn.kind] = turn.name
    return tuple(plan)


def pairs(plan: tuple[Turn, ...]) -> dict[str, dict[Kind, str]]:
    """By the turn that completes it, the two turns whose networks are a whole policy."""
    found: dict[str, dict[Kind, str]] = {}
    last: dict[Kind, str] = {}
    for turn in plan:
        last[turn.kind] = turn.name
        if len(last) == 2:
            found[turn.name] = dict(last)
    return found


# The environment of a turn, beside the frozen network of its partner (None: a partner that is no policy).
MakeEnv = Callable[[Turn, Network | None], gymnasium.Env[Any, Any]]
TurnProgress = Callable[[Turn, int, int, float], None]


class CoTraining:
    """All turns of a run.

    Args:
        folder: a folder for each turn goes there.
        settings: PPO's, of each kind.
        seed: of the run; every turn has its own, derived from it.
        run: whatever else makes the run this run; JSON values.
        rounds: after the first two turns. More of them go on with a run that had fewer.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[Kind, PPOSettings],
        seed: int,
        run: Mapping[str, Any],
        rounds: int = 0,
    ) -> None:
        if rounds < 0:
            raise ValueError(f"rounds is {rounds}, must be >= 0")
        self.turns = turns(rounds)
        self._folder, self._settings, self._seed = folder, dict(settings), seed
        # Each policy shapes what the other meets: both settings make every turn what it is.
        both = {f"{kind}_policy": asdict(one) for kind, one in self._settings.items()}
        self._run = {**run, **both}

    def finished(self) -> int:
        """Turns that need no more training, from the first. ValueError if the folder holds another run's."""
        for number, turn in enumerate(self.turns):
            settings, seed, folder, run = self._about(turn)
            if not is_finished(settings, seed, folder, run=run):
                return number
        return len(self.turns)

    def train(
        self,
        make_env: MakeEnv,
        *,
        reference: float,
        tensorboard_dir: Path | None = None,
        progress: TurnProgress | None = None,
    ) -> dict[str, Network]:
        """Every turn, to its end; the networks by the turns' names.

        Args:
            make_env: makes the environment of a turn.
            reference: tokens per second that rewards are divided by, the same in all turns.
            tensorboard_dir: curves go to a folder for each turn.
            progress: called with the turn and what `policies.ppo.train` reports of it.
        """
        networks: dict[str, Network] = {}
        for turn in self.turns:
            settings, seed, folder, run = self._about(turn)

            def report(done: int, total: int, speed: float, turn: Turn = turn) -> None:
                if progress is not None:
                    progress(turn, done, total, speed)

            model = train(
                make_env(turn, networks[turn.partner] if turn.partner else None),
                settings,
                seed,
                folder,
                reference=reference,
                tensorboard_dir=None if tensorboard_dir is None else tensorboard_dir / turn.name,
                progress=report,
                run=run,
                start=self._folder / turn.start if turn.start else None,
            )
            networks[turn.name] = network_of(model)
        return networks

    def load(self, name: str, env: gymnasium.Env[Any, Any]) -> PPO:
        """The finished model of a turn; ValueError if it is not finished. `env`: for its spaces."""
        turn = next((turn for turn in self.turns if turn.name == name), None)
        if turn is None:
            raise ValueError(f"there is no turn {name!r}: it was trained with more rounds, give as many")
        settings, seed, folder, run = self._about(turn)
        return load_trained(env, settings, seed, folder, run=run)

    def _about(self, turn: Turn) -> tuple[PPOSettings, int, Path, dict[str, Any]]:
        """Settings, seed, folder and identity of a turn, whose start and partner must be finished."""
        place = self.turns.index(turn)
        seed = int(np.random.SeedSequence([self._seed, place]).generate_state(1)[0])
        # Named by content: a start or a partner that was trained anew makes it another turn.
        needed = {
            role: checkpoint.finished_hash(self._folder / name)
            for role, name in (("start", turn.start), ("partner", turn.partner))
            if name is not None
        }
        identity = {**self._run, "turn": turn.name, **needed, "run_seed": self._seed}
        return self._settings[turn.kind], seed, self._folder / turn.name, identity
