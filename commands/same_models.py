"""Whether what was recorded and measured belongs to the models of a configuration."""

from __future__ import annotations

from collections.abc import Mapping

from configs.schema import Config
from decoding.extra_layers import extra_layers_of, unmarked
from decoding.profile import CostProfile


def check_same(mine: Mapping[str, str], others: Mapping[str, str], what: str, whose: str) -> None:
    """ValueError unless target and tokenizer write the same; a drafter's name may differ with its parts."""
    for name in ("target", "tokenizer"):
        if unmarked(mine[name]) != unmarked(others[name]):
            raise ValueError(
                f"{what} is of {name} {mine[name]}, {whose} of {others[name]}: they do not belong together"
            )


def check_extra_layers(profile: CostProfile, config: Config) -> None:
    """ValueError if it was measured on a target that is slower, or less slow, than the configuration's: it
    writes the same texts, and nothing else would tell."""
    measured, wanted = extra_layers_of(profile.fingerprints["target"]), config.model.extra_layers
    if measured != wanted:
        raise ValueError(
            f"a profile was measured with {measured} extra layers, model.extra_layers is {wanted}: profile"
            " again, or set it"
        )
