"""A folder that is replaced is the old one or the new one, whenever the replacement is killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from decoding.whole_folder import replaced_folder, restore, whole_folder


class Killed(BaseException):
    """SIGKILL: nothing of the program runs after it."""


def content(folder: Path) -> str:
    return (whole_folder(folder) / "file").read_text()


def replace_with(text: str, folder: Path) -> None:
    with replaced_folder(folder) as fresh:
        (fresh / "file").write_text(text)


def test_a_folder_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    for text in ("old", "new"):
        replace_with(text, tmp_path / "policy")
        assert content(tmp_path / "policy") == text
        assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_a_block_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    replace_with("old", tmp_path / "policy")
    with pytest.raises(OSError, match="full"), replaced_folder(tmp_path / "policy"):
        raise OSError("full")
    assert content(tmp_path / "policy") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def killed_at(call: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Replace with "new", killed before this change of a folder's place; False if it has fewer."""
    left = [call]

    def dying(through: Any) -> Any:
        def change(*arguments: Any, **more: Any) -> Any:
            if left[0] == 0:
                raise Killed  # again and again: nor does a finally run
            left[0] -= 1
            return through(*arguments, **more)

        return change

    with monkeypatch.context() as patch:
        for place, name in ((Path, "rename"), (Path, "mkdir"), (shutil, "rmtree")):
            patch.setattr(place, name, dying(getattr(place, name)))
        try:
            replace_with("new", folder)
        except Killed:
            return True
    return False


def test_a_kill_at_any_moment_leaves_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = 0
    seen = set()
    while True:
        folder = tmp_path / str(moments) / "policy"
        folder.parent.mkdir()
        replace_with("old", folder)
        if not killed_at(moments, folder, monkeypatch):
            break
        found = content(folder)
        seen.add((found, folder.exists()))
        restore(folder)
        assert (folder / "file").read_text() == found
        assert [path.name for path in folder.parent.iterdir()] == ["policy"]
        moments += 1
    assert moments == 4  # the new one made, the old one away, the new one in its place, the old one removed
    assert seen == {("old", True), ("old", False), ("new", True)}


def test_a_rename_that_fails_puts_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_with("old", tmp_path / "policy")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == ".policy.new":
            raise OSError("gone")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="gone"):
        replace_with("new", tmp_path / "policy")
    assert content(tmp_path / "policy") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    replace_with("old", tmp_path / "elsewhere")
    (tmp_path / "policy").symlink_to(tmp_path / "elsewhere")
    replace_with("new", tmp_path / "policy")
    assert content(tmp_path / "policy") == "new"
    assert content(tmp_path / "elsewhere") == "old"


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_folders_without_a_name_are_themselves(name: str) -> None:
    assert whole_folder(Path(name)) == Path(name)
