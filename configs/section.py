"""What the sections of a configuration are made of: their base, and the kinds of values that they share."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

REPO_ROOT = Path(__file__).resolve().parent.parent


def _from_repo_root(value: Any) -> Any:
    """Anchor a relative path at the checkout, so that a run does not depend on the folder it starts from."""
    if value is None:
        return value  # for the keys where null means none
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be a path")
    return (REPO_ROOT / Path(value).expanduser()).resolve()


def _one_or_more(value: Any) -> Any:
    """A path or a list of paths; as one validator, since a union's messages name its alternatives' types."""
    if not isinstance(value, list):
        return _from_repo_root(value)
    if not value or None in value:
        raise ValueError("must be a path, or a list of at least one")
    return [_from_repo_root(item) for item in value]


def _all_as_written(paths: Path | list[Path]) -> str | list[str]:
    return [_as_written(path) for path in paths] if isinstance(paths, list) else _as_written(paths)


def _as_written(path: Path) -> str:
    """The inverse, for dumps and reports: a path inside the checkout says nothing about the machine."""
    return str(path.relative_to(REPO_ROOT) if path.is_relative_to(REPO_ROOT) else path)


def _strictly_increasing(values: list[int]) -> list[int]:
    if any(low >= high for low, high in pairwise(values)):
        raise ValueError(f"must be strictly increasing, e.g. {sorted(set(values))}")
    return values


RepoPath = Annotated[Path, BeforeValidator(_from_repo_root), PlainSerializer(_as_written, when_used="json")]
RepoPaths = Annotated[
    Path | list[Path],
    BeforeValidator(_one_or_more),
    PlainSerializer(_all_as_written, when_used="json"),
]
Increasing = Annotated[
    list[Annotated[int, Field(ge=1, le=1024)]], Field(min_length=1), AfterValidator(_strictly_increasing)
]
Contexts = Annotated[
    list[Annotated[int, Field(ge=16, le=2**20)]], Field(min_length=1), AfterValidator(_strictly_increasing)
]
Names = Annotated[list[str], Field(min_length=1)]
Layers = Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=1, max_length=4)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base of every section. Strict: the text "8" or the flag `true` is not the number 8 or 1."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False
    )
