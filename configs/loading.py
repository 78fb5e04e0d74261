"""From a YAML file and `--set a.b=v` to a checked Config; every mistake becomes one line with the way out."""

import difflib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from configs.schema import Config

Location = tuple[int | str, ...]

_UNKNOWN_KEY = {"extra_forbidden", "invalid_key"}
_LONGEST_VALUE = 60  # of a value quoted in a message


class ConfigError(ValueError):
    """A configuration that cannot be used. Its text is one line: key, value, limit and the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read `path`, lay the `--set` overrides ("a.b=v", later ones win) over it and check the whole.

    Keys that neither names keep the defaults of `configs.schema`.

    Raises:
        ConfigError: for anything wrong, in one line.
    """
    return _checked(_read(path), str(path), overrides)


def config_with(raw: Mapping[str, Any], source: str, overrides: Sequence[str] = ()) -> Config:
    """The same from what a report or a policy recorded, e.g. `report.config`; `source` names it in errors."""
    return _checked(OmegaConf.create(_escape(dict(raw))), source, overrides)


def _checked(merged: DictConfig, path: str, overrides: Sequence[str]) -> Config:
    for override in overrides:
        merged = _merge(merged, override)
    try:
        raw = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise _refused(path, error) from error
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_explain(error, path, overrides)) from error


def dump_config(config: Config) -> str:
    """YAML that `load_config` reads back as an equal Config, so that a recorded run can be repeated."""
    return OmegaConf.to_yaml(OmegaConf.create(_escape(config.model_dump(mode="json"))))


def _escape(value: Any) -> Any:
    """Keep text that looks like an interpolation from being resolved when it is read back."""
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def _read(path: str | Path) -> DictConfig:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such configuration file; configs/default.yaml shows every key"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; name a readable YAML file") from error
    try:
        config = OmegaConf.load(io.StringIO(text))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{path}, {_where(error, text)}: not valid YAML: {_problem(error)}; correct that line"
        ) from error
    except OmegaConfBaseException as error:
        raise _refused(path, error) from error
    except OSError:  # omegaconf's word for a lone number
        config = None
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{path}: holds no keys; write key: value lines as configs/default.yaml does")
    return config


def _merge(config: DictConfig, override: str) -> DictConfig:
    key, _, value = override.partition("=")
    if value.strip() in {"", "???"} or not re.fullmatch(r"[^\s.\[\]]+(\.[^\s.\[\]]+)*", key):
        raise ConfigError(
            f"--set {override!r}: must be key=value with a dotted key, e.g. --set draft.max_depth=4"
        )
    try:
        merged = OmegaConf.merge(config, OmegaConf.from_dotlist([override]))
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {override!r}: the value of {key} is not valid YAML: {_problem(error)}; quote or mend it"
        ) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"--set {override!r}: {key}: {_first_line(error)}; write a plain value") from error
    except TypeError as error:  # a key of a list, or a section in its place
        raise ConfigError(
            f"--set {override!r}: {key} is a list or inside one; write the whole list, as x=[1,2]"
        ) from error
    assert isinstance(merged, DictConfig)
    return merged


def _refused(path: str | Path, error: OmegaConfBaseException) -> ConfigError:
    """For what omegaconf itself does not take: a dangling ${reference}, a missing ???, a date, a set."""
    return ConfigError(f"{path}: {error.full_key}: {_first_line(error)}; write a plain value")


def _where(error: yaml.YAMLError, text: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}"
    return f"line {text.count(chr(10), 0, getattr(error, 'position', 0)) + 1}"  # a character YAML refuses


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _explain(error: ValidationError, path: str, overrides: Sequence[str]) -> str:
    """The first problem in one line. Unknown keys go first: a misspelt key often causes the others."""
    problems = sorted(
        error.errors(include_url=False), key=lambda problem: problem["type"] not in _UNKNOWN_KEY
    )
    problem = problems[0]
    source = _source(problem, path, overrides)
    if problem["type"] in _UNKNOWN_KEY:
        line = _unknown_key(problem["loc"])
    else:
        line = _bad_value(problem)
    more = f" (and {len(problems) - 1} more after it)" if len(problems) > 1 else ""
    return f"{source}: {line}{more}"


def _bad_value(problem: ErrorDetails) -> str:
    key, value = _dotted(problem["loc"]), problem["input"]
    limit = re.sub(r"^(Input|String|List) should ", "must ", problem["msg"].removeprefix("Value error, "))
    if problem["type"] == "value_error" and isinstance(value, dict):
        return f"{key}: {limit}" if key else limit  # several keys of a section: the message names them
    if problem["type"] == "model_type":
        return f"{key} = {_shorten(value)} must be a section of keys; give its keys or leave it out"
    return f"{key} = {_shorten(value)} {limit}; {_way_out(problem['loc'])}"


def _way_out(location: Location) -> str:
    """The meaning and the default of the key: what a reader needs to choose another value."""
    names = [str(name) for name in location if not isinstance(name, int)]
    section = _section(names[:-1])
    assert section is not None, "a value below a key that is no section is an item of its list"
    default: Any = Config().model_dump(mode="json")
    for name in names:
        default = default[name]
    return f"meaning: {section.model_fields[names[-1]].description}; default: {json.dumps(default)}"


def _unknown_key(location: Location) -> str:
    key, siblings = _dotted(location), _section(location[:-1])
    known = list(siblings.model_fields) if siblings else []
    parent = _dotted(location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    if near:
        return f"unknown key {key}; did you mean {_dotted((*location[:-1], near[0]))}?"
    everywhere: dict[str, str] = {}
    for path in _known_paths(Config):
        everywhere.setdefault(path.rpartition(".")[2], path)
    near = difflib.get_close_matches(str(location[-1]), everywhere, n=1, cutoff=0.8)
    if near:
        return f"unknown key {key}; did you mean {everywhere[near[0]]}?"
    return f"unknown key {key}; {parent or 'the top level'} knows {', '.join(known)}"


def _section(location: Sequence[int | str]) -> type[BaseModel] | None:
    """The model that holds the keys below `location`, or None where there is no such section."""
    section: type[BaseModel] = Config
    for name in location:
        field = section.model_fields.get(str(name))
        if field is None or not (
            isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ):
            return None
        section = field.annotation
    return section


def _known_paths(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _known_paths(field.annotation, f"{prefix}{name}.")


def _source(problem: ErrorDetails, path: str, overrides: Sequence[str]) -> str:
    """Who said it: the last `--set` that reaches the place, else the file."""
    if isinstance(problem["input"], dict):
        return path if not overrides else f"{path} with --set {' '.join(overrides)}"
    key = re.sub(r"\[\d+\]", "", _dotted(problem["loc"]))
    for override in reversed(overrides):
        if f"{key}.".startswith(f"{override.partition('=')[0]}."):
            return f"--set {override}"
    return path


def _dotted(location: Location) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)  # null and true, as in the file
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
