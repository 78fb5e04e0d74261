"""The configuration: what loads, what is refused, and that every refusal is one line that helps."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from configs import Config, ConfigError, dump_config, load_config
from configs.section import REPO_ROOT

CONFIGS = REPO_ROOT / "configs"
DEFAULT = CONFIGS / "default.yaml"


def refusal(path: Path, *overrides: str) -> str:
    """Its one line, whatever was wrong."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    line = str(caught.value)
    assert "\n" not in line
    return line


def sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield section
    for field in section.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from sections(field.annotation)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


# --- what loads -------------------------------------------------------------------------------------------


def test_default_yaml_is_the_defaults_of_the_schema() -> None:
    assert load_config(DEFAULT) == Config()


def test_default_yaml_names_every_key_and_comments_it() -> None:
    text = DEFAULT.read_text(encoding="utf-8")
    raw = Config().model_dump()

    def keys(section: dict[str, Any]) -> Iterator[str]:
        for key, value in section.items():
            yield key
            if isinstance(value, dict):
                yield from keys(value)

    for key in set(keys(raw)):
        lines = re.findall(rf"^ *{key}:.*$", text, flags=re.MULTILINE)
        assert lines, f"default.yaml leaves out {key}"
        is_section = any(key in section.model_fields for section in sections(Config)) and lines[0].endswith(
            ":"
        )
        assert is_section or "#" in lines[0], f"default.yaml does not explain {key}"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_file_loads(path: Path) -> None:
    assert isinstance(load_config(path), Config)


def test_demo_is_small() -> None:
    demo = load_config(CONFIGS / "demo.yaml")
    assert demo.policy.preset == "default"
    assert demo.policy.cycle.ppo.timesteps == 200_000
    assert (demo.traces.temperatures, demo.traces.max_new_tokens) == ([0.0], 96)
    # the issue asks for a grid of at least 4 x 3, in the demo too
    assert len(demo.evaluation.draft_depths) >= 4
    assert len(demo.evaluation.verification_sizes) >= 3


def test_an_empty_file_is_all_defaults(written: Path) -> None:
    written.write_text("# nothing\n")
    assert load_config(written) == Config()


def test_set_wins_over_the_file_and_the_last_set_wins(written: Path) -> None:
    written.write_text("seed: 1\ndraft: {max_depth: 8}\n")
    config = load_config(
        written, ["seed=2", "seed=3", "sampling.top_p=9e-1", "evaluation.draft_depths=[2,3]"]
    )
    assert (config.seed, config.draft.max_depth) == (3, 8)
    assert config.sampling.top_p == 0.9
    assert config.evaluation.draft_depths == [2, 3]


def test_set_can_name_a_key_that_the_file_leaves_out_and_can_take_a_value_back(written: Path) -> None:
    written.write_text("threads: 2\n")
    config = load_config(written, ["threads=null", "workload.categories=[coding]"])
    assert config.threads is None
    assert config.workload.categories == ["coding"]


def test_relative_paths_start_at_the_checkout(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written.parent)
    written.write_text("drafter: {corpus: ../corpus.npz, start_from: runs/a/head}\n")
    config = load_config(written)
    assert config.workload.files[0] == REPO_ROOT / "configs/prompts/mixed.jsonl"
    assert config.drafter.corpus == REPO_ROOT.parent / "corpus.npz"
    assert config.drafter.start_from == REPO_ROOT / "runs/a/head"


def test_a_config_is_frozen() -> None:
    config = Config()
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.policy.depth.epochs = 3  # type: ignore[misc]


def test_every_key_has_a_description() -> None:
    for section in sections(Config):
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"


# --- what is recorded can be repeated ---------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_a_dump_loads_as_the_same_config(path: Path, written: Path) -> None:
    config = load_config(path, ["seed=7", "policy.depth.learning_rate=1e-5"])
    written.write_text(dump_config(config), encoding="utf-8")
    assert load_config(written) == config


def test_a_dump_does_not_name_the_checkout() -> None:
    assert str(REPO_ROOT) not in dump_config(Config())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    names=st.lists(
        st.one_of(
            st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8),
            st.sampled_from(
                ["1e5", "null", "no", "0x1f", "12:30", "2024-01-01", "${a}", r"\${", "${", "a: b #c"]
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    rate=st.floats(1e-300, 1.0),
    seed=st.none() | st.integers(0, 2**32 - 1),
)
def test_any_config_survives_the_round_trip(
    names: list[str], rate: float, seed: int | None, tmp_path: Path
) -> None:
    config = Config.model_validate(
        {"seed": seed, "workload": {"categories": names}, "drafter": {"learning_rate": rate}}
    )
    path = tmp_path / "round.yaml"
    path.write_bytes(dump_config(config).encode())
    assert load_config(path) == config


# --- what is refused --------------------------------------------------------------------------------------

REFUSED_SETS = {
    # override: what its line must say, besides the override's key
    "draft.max_depth=40": ["40", "less than or equal to 32", "default: 6"],
    "draft.beam_width=0": ["0", "greater than or equal to 1"],
    "seed=-1": ["-1", "greater than or equal to 0"],
    "seed=true": ["true", "valid integer"],
    "seed=1.5": ["1.5", "valid integer"],
    "threads='2'": ['"2"', "valid integer"],
    "sampling.top_p=0": ["greater than 0"],
    "sampling.top_p=1.5": ["less than or equal to 1"],
    "sampling.temperature=-0.1": ["greater than or equal to 0"],
    "sampling.temperature=.nan": ["finite"],
    "sampling.top_k=0": ["greater than or equal to 1"],
    "model.device=gpu": ["gpu", "cuda:N"],
    "model.dtype=fp32": ["fp32", "'float32'"],
    "model.target=''": ["at least 1 character"],
    "policy.reward=time": ["time", "'throughput'"],
    "policy.depth.discount=1.01": ["less than or equal to 1"],
    "policy.size.policy_net=[]": ["at least 1 item"],
    "policy.depth.value_net=[0]": ["value_net[0] = 0", "greater than or equal to 1"],
    "policy.size.verification_sizes=[4,4]": ["[4, 4]", "strictly increasing"],
    "evaluation.verification_sizes=[8,4]": ["[8, 4]", "strictly increasing", "[4, 8]"],
    "evaluation.draft_depths=[0,1]": ["draft_depths[0] = 0", "greater than or equal to 1"],
    "evaluation.draft_depths=3": ["= 3", "valid list"],
    "evaluation.confidence=1": ["less than 1"],
    "workload.files=[]": ["at least 1 item"],
    "workload.files=[3]": ["files[0] = 3", "must be a path"],
    "workload.categories=coding": ["coding", "valid list"],
    "drafter.held_out_share=.9": ["less than or equal to 0.5"],
    "drafter.fused_layers=[1,2]": ["[1, 2]", "at least 3 items"],
    "drafter.fused_layers=[1,2,3,4]": ["at most 3 items"],
    "drafter.fused_layers=[0,1,2]": ["fused_layers[0] = 0", "greater than or equal to 1"],
    "drafter.patience=0": ["greater than or equal to 1", "default: 6"],
    "drafter.evaluate_every=0": ["greater than or equal to 1"],
    "drafter.freeze_output=1": ["valid boolean"],
    "drafter.start_from=5": ["must be a path", "default: null"],
    "policy.cycle.question_microseconds=1e300": ["less than or equal to 1000000", "default: 60.0"],
    "policy=3": ["policy = 3", "section"],
}


@pytest.mark.parametrize("override", REFUSED_SETS)
def test_a_value_outside_its_limits_is_refused_with_key_value_limit_and_way_out(override: str) -> None:
    line = refusal(DEFAULT, override)
    assert line.startswith(f"--set {override}: {override.partition('=')[0]}")
    for part in REFUSED_SETS[override]:
        assert part in line, line
    assert "default: " in line or "leave it out" in line


def test_a_value_from_the_file_is_blamed_on_the_file(written: Path) -> None:
    written.write_text("draft: {max_depth: 40}\n")
    assert refusal(written, "seed=3").startswith(f"{written}: draft.max_depth = 40 must")


def test_minibatches_must_fill_the_rollout() -> None:
    for policy in ("depth", "size"):
        line = refusal(DEFAULT, f"policy.{policy}.minibatch_size=100")
        assert f"policy.{policy}: rollout_steps = 512 must be a multiple of minibatch_size = 100" in line
        assert "e.g. to 600" in line
        line = refusal(DEFAULT, f"policy.{policy}.minibatch_size=1024")
        assert "minibatch_size = 1024 must be at most rollout_steps = 512" in line


def test_a_text_of_the_corpus_must_fit_a_batch() -> None:
    assert "max_length = 4000 must be at most batch_tokens = 512" in refusal(
        DEFAULT, "drafter.max_length=4000"
    )


@pytest.mark.parametrize("key", ["policy.partner_depth", "evaluation.draft_depths"])
def test_no_depth_may_exceed_the_deepest_draft(key: str) -> None:
    value = "[1,7]" if key.endswith("depths") else "7"
    line = refusal(DEFAULT, f"{key}={value}")
    assert f"{key} asks for depth 7, but draft.max_depth = 6" in line
    assert load_config(DEFAULT, [f"{key}={value}", "draft.max_depth=7"]).draft.max_depth == 7


UNKNOWN_KEYS = {
    "sed=3": "did you mean seed?",
    "drafts.max_depth=3": "did you mean draft?",
    "draft.max_depht=3": "did you mean draft.max_depth?",
    "policy.size.verification_size=[1]": "did you mean policy.size.verification_sizes?",
    "policy.depth.verification_sizes=[1]": "did you mean policy.cycle.verification_sizes?",
    "timestep=3": "did you mean policy.cycle.ppo.timesteps?",
    "draft.zzz=3": "draft knows beam_width, max_depth",
    "zzz=3": "the top level knows seed, threads, model",
}


@pytest.mark.parametrize("override", UNKNOWN_KEYS)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(override: str, written: Path) -> None:
    key, _, value = override.partition("=")
    unknown = "drafts" if key.startswith("drafts") else key
    assert f"unknown key {unknown}; {UNKNOWN_KEYS[override]}" in refusal(DEFAULT, override)

    *parents, leaf = key.split(".")  # and the same from a file
    written.write_text("".join(f"{name}: {{" for name in parents) + f"{leaf}: {value}" + "}" * len(parents))
    line = refusal(written)
    assert line.startswith(f"{written}: unknown key {unknown}; {UNKNOWN_KEYS[override]}")


def test_an_unknown_key_is_named_before_other_mistakes(written: Path) -> None:
    written.write_text("seed: -1\nsede: 3\n")
    line = refusal(written)
    assert "unknown key sede; did you mean seed? (and 1 more after it)" in line


@pytest.mark.parametrize(
    "override", ["seed", "seed=", "=3", "draft..max_depth=3", ".seed=3", "seed=???", "", "a b=3"]
)
def test_a_set_that_is_no_assignment_is_refused(override: str) -> None:
    line = refusal(DEFAULT, override)
    assert repr(override) in line
    assert "must be key=value" in line


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("draft.max_depth=[1", "not valid YAML"),
        ("evaluation.draft_depths.0=3", "whole list"),
        ("evaluation.draft_depths={a: 1}", "whole list"),
        ("seed=${", "plain value"),
        ("seed='two\n\nlines'", "valid integer"),
        ("seed=${nowhere}", "plain value"),
        ("seed=!!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_a_set_whose_value_cannot_be_read_is_refused(override: str, says: str) -> None:
    line = refusal(DEFAULT, override)
    assert override.partition("=")[0] in line
    assert says in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed: 1\n bad: 2\n", ", line 2: not valid YAML"),
        ("seed: 1\nthreads: 1\nseed: 2\n", ", line 3: not valid YAML: found duplicate key seed"),
        ("seed: 1\nthreads: \x01\n", ", line 2: not valid YAML"),
        ("seed: 1\nthreads: !!python/object/apply:os.getcwd []\n", ", line 2: not valid YAML"),
        ("- seed\n", ": holds no keys"),
        ("3\n", ": holds no keys"),
        ("sead", ": unknown key sead; did you mean seed?"),
        ("1: 2\n", ": unknown key [1]"),
        ("policy:\n", ": policy = null must be a section"),
        ("seed: ???\n", ": seed: "),
        ("seed: !!timestamp 2024-01-01\n", ": seed: "),
        ("seed: |\n  two\n  lines\n", r": seed = "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(text: str, says: str, written: Path) -> None:
    written.write_text(text)
    assert refusal(written).startswith(f"{written}{says}")


def test_files_that_are_no_text_are_refused(tmp_path: Path, written: Path) -> None:
    assert "no such configuration file" in refusal(tmp_path / "none.yaml")
    assert "Is a directory" in refusal(tmp_path)
    written.write_bytes(b"seed: 1 # \xff\n")
    assert "not UTF-8 text at byte 10" in refusal(written)


YAML_NOISE = st.text(st.sampled_from("seedraft.max_ph:=- \n\t[]{}#'\"!&*?|>%@`,0123~${}\\\x00é"), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(text=YAML_NOISE, override=YAML_NOISE)
def test_noise_is_read_or_refused_and_never_crashes(text: str, override: str, tmp_path: Path) -> None:
    path = tmp_path / "noise.yaml"
    path.write_text(text, encoding="utf-8")
    for target, overrides in ((path, []), (DEFAULT, [override]), (DEFAULT, [f"seed={override}"])):
        with contextlib.suppress(ConfigError):
            load_config(target, overrides)
