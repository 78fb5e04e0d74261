"""Files are whole or not there at all, and damage is one clear line."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest
import torch

from decoding.artifacts import (
    atomic_path,
    cache_dir,
    load_tensors,
    read_json,
    save_tensors,
    sha256_file,
    write_json,
    write_text,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_text(path, "old")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named_with_the_file(tmp_path: Path) -> None:
    """A write that fails does not say where; a message of its own is left alone."""
    for error, named in (
        (OSError(errno.ENOSPC, "No space left on device"), str(tmp_path / "result.json")),
        (OSError(errno.ENOENT, "No such file", "other"), "other"),
        (OSError("cannot be written"), None),
    ):
        with pytest.raises(OSError, match=r"No|cannot") as raised, atomic_path(tmp_path / "result.json"):
            raise error
        assert raised.value.filename == named
    assert str(error) == "cannot be written"


def test_a_failed_first_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it would hold a number that is not finite"):
        write_json(tmp_path / "deep" / "result.json", {"value": float("nan")})
    assert list((tmp_path / "deep").iterdir() if (tmp_path / "deep").exists() else ()) == []


def test_the_file_appears_only_when_the_block_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
        assert temporary.parent == path.parent  # a rename across file systems would be a copy
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o600 == 0o600


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"text": "perché 中文 \u2028", "numbers": [1, 2.5, None], "deep": {"yes": True}}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json", "thing") == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "card .*x.json does not exist"),
        (b'{"a": 1', "card .*x.json is not readable JSON"),
        (b"", "card .*x.json is not readable JSON"),
        (b"\xff\xfe\x00", "card .*x.json is not readable JSON"),
        (b"[1, 2]", "card .*x.json holds a list, not a JSON object"),
    ],
)
def test_bad_json_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_json(path, "card")
    assert "\n" not in str(caught.value)


def test_tensor_round_trip(tmp_path: Path) -> None:
    """Also views that share storage or are not contiguous, which safetensors itself refuses."""
    torch.manual_seed(0)
    matrix = torch.randn(3, 4)
    tensors = {
        "turned": matrix.T,
        "half": matrix.to(torch.bfloat16),
        "ids": torch.arange(3),
        "row": matrix[1],
    }
    save_tensors(tmp_path / "t.safetensors", tensors)
    loaded = load_tensors(tmp_path / "t.safetensors", "weights")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_truncated_tensors_are_one_line(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "t.safetensors"
    save_tensors(path, {"a": torch.zeros(50)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"weights .*t.safetensors is damaged or truncated") as caught:
        load_tensors(path, "weights")
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weights .*t.safetensors does not exist"):
        load_tensors(tmp_path / "t.safetensors", "weights")


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"draftpace")
    assert sha256_file(tmp_path / "f") == hashlib.sha256(b"draftpace").hexdigest()


def test_cache_folder_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPACE_CACHE", "/somewhere/else")
    assert cache_dir() == Path("/somewhere/else")
    monkeypatch.delenv("DRAFTPACE_CACHE")
    assert cache_dir() == Path.home() / ".cache" / "draftpace"
