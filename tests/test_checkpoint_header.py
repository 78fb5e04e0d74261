"""The JSON half of a checkpoint: numbers that no training has are refused in one line, whatever they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_policies import SHORT, ChooseTheLargest

from policies import checkpoint
from policies.ppo import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(ChooseTheLargest(), SHORT, 7, folder)
    return folder


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("reference", "NaN", "reference is nan, must be a number above 0"),
        ("reference", "Infinity", "reference is inf"),
        ("reference", "0", "reference is 0"),
        ("reference", "true", "reference is True"),
        ("timesteps", "-1", "timesteps is -1, must be a whole number >= 0"),
        ("timesteps", "1" + "0" * 400, "timesteps is 1000000000"),
        ("timesteps", "true", "timesteps is True"),
        ("updates", '"many"', "updates is many"),
        ("updates", "0.5", "updates is 0.5"),
        ("finished", '"no"', "finished is no, must be true or false"),
        ("tensors_file", '"../checkpoint-64.safetensors"', "tensors_file is no file beside it"),
        ("sha256", "3", "another SHA-256"),
        ("python_random", "[3, null, 1]", "does not fit the policy"),
        ("numpy_random", "[" + "1" + "0" * 40 + ", 0, 0.0]", "does not fit the policy"),
        (
            "env_random",
            '{"bit_generator": "PCG64", "state": {"state": 1e99, "inc": -1}, "has_uint32": 0, "uinteger": 0}',
            "does not fit the policy",
        ),
    ],
)
def test_a_header_of_nonsense_is_one_line(
    field: str, value: str, says: str, trained: Path, tmp_path: Path
) -> None:
    for path in trained.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    header = tmp_path / checkpoint.HEADER_FILE
    raw = json.loads(header.read_text()) | {field: "here"}
    header.write_text(json.dumps(raw).replace('"here"', value))
    with pytest.raises(ValueError, match=r"damaged|does not fit") as error:
        train(ChooseTheLargest(), SHORT, 7, tmp_path)
    assert says in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert "remove" in str(error.value)
