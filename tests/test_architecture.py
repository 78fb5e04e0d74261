"""The arrows between the rooms (design.md section 3), read from the imports of every file."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# room: the other rooms it may import. train.py, evaluate.py, benchmarks/ and tests/ may import any.
ARROWS: dict[str, set[str]] = {
    "decoding": set(),
    "envs": {"decoding"},
    "policies": {"decoding"},
    "evaluation": {"decoding", "policies"},
    "configs": set(),
    "commands": {"decoding", "envs", "policies", "evaluation", "configs"},
}
LEARNING = {"gymnasium", "stable_baselines3", "sb3_contrib", "matplotlib", "tensorboard"}
# These run an exported policy and describe what it sees: they must work beside any decoder.
LEAN = (
    "decoding/exported.py",
    "decoding/exported_cycle.py",
    "decoding/features.py",
    "decoding/cycle_features.py",
)
LONGEST_FILE = 350

ROOMS = [room for room in ARROWS if any((ROOT / room).rglob("*.py"))]
FOLDERS = [*ROOMS, *(name for name in ("benchmarks", "tests") if (ROOT / name).is_dir())]
FILES = sorted([*(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")), *ROOT.glob("*.py")])


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(source: str, package: str, *, typing_only: bool = True) -> set[str]:
    """Full names of what `source` imports, anywhere in it, a relative import made absolute.

    `from a import b` gives both a and a.b, as b may be a module. With `typing_only` false, what stands under
    `if TYPE_CHECKING:` is left out, since it is never run.
    """
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not typing_only:
            waiting.extend(node.orelse)
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)}
    return found


@cache
def imported_by(path: Path, *, typing_only: bool = True) -> frozenset[str]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    return frozenset(imports(path.read_text(encoding="utf-8"), package, typing_only=typing_only))


def top(names: frozenset[str] | set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def files_of(room: str) -> Iterator[Path]:
    return (path for path in FILES if path.relative_to(ROOT).parts[0] == room)


def reached_from(start: Path) -> dict[Path, Path | None]:
    """Files of the rooms that running `start` imports, each with the file it was first met in.

    A room's own `__init__` is left out: it opens the whole room, for whoever wants that.
    """
    met: dict[Path, Path | None] = {start: None}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        for name in imported_by(path, typing_only=False):
            parts = name.split(".")
            for length in range(2, len(parts) + 1):  # importing a.b.c runs a.b as well
                base = ROOT.joinpath(*parts[:length])
                for found in (base.with_suffix(".py"), base / "__init__.py"):
                    if found.is_file() and found not in met:
                        met[found] = path
                        waiting.append(found)
    return met


def test_the_decoding_room_is_there() -> None:
    assert list(files_of("decoding"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_its_arrows_allow(room: str) -> None:
    outside = {*ARROWS, "benchmarks", "tests", "train", "evaluate"} - {room} - ARROWS[room]
    for path in files_of(room):
        crossed = top(imported_by(path)) & outside
        assert not crossed, f"{relative(path)} imports {sorted(crossed)}"


def test_only_train_and_evaluate_read_the_configuration() -> None:
    # the rooms are held above, where commands alone may read it; this holds every other file at the top
    for path in ROOT.glob("*.py"):
        if path.name not in {"train.py", "evaluate.py"}:
            assert "configs" not in top(imported_by(path)), f"{relative(path)} imports configs"


def test_decoding_knows_nothing_of_learning_or_plotting() -> None:
    for path in files_of("decoding"):
        crossed = top(imported_by(path)) & LEARNING
        assert not crossed, f"{relative(path)} imports {sorted(crossed)}"
        assert not any(name.startswith("torch.utils.tensorboard") for name in imported_by(path)), relative(
            path
        )


@pytest.mark.parametrize("name", LEAN)
def test_exported_policies_need_no_transformers(name: str) -> None:
    start = ROOT / name
    assert start.is_file(), f"{name} has moved: name its new place in LEAN"
    for path, via in reached_from(start).items():
        crossed = top(imported_by(path, typing_only=path == start)) & {"transformers", *LEARNING}
        assert not crossed, (
            f"{name} reaches {sorted(crossed)} in {relative(path)}, by {via and relative(via)}"
        )


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_imported_from_this_checkout(room: str) -> None:
    # without an __init__.py it would be a namespace package, and lose against any installed one of its name
    assert importlib.import_module(room).__file__ == str(ROOT / room / "__init__.py")


WITHOUT_LEARNING = """
import importlib, pkgutil, sys

sys.modules.update(dict.fromkeys(("gymnasium", "stable_baselines3")))  # None: importing them fails
import decoding

for module in pkgutil.walk_packages(decoding.__path__, "decoding."):
    importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name, module in sys.modules.items() if module is not None}))
print(*(name for name in sys.modules if name.startswith("torch.utils.tensorboard")))
"""


def test_decoding_runs_where_no_learning_library_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LEARNING],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded, tensorboard = done.stdout.splitlines()
    assert "decoding" in loaded.split()
    assert not LEARNING & set(loaded.split())
    assert not tensorboard


@pytest.mark.parametrize(
    "statement", ["import decoding", "from decoding import SpeculativeDecoder", "import decoding.__main__"]
)
def test_decoding_imports_no_learning_library_where_they_are_installed(statement: str) -> None:
    """Nor does anything that it imports, which above might have done without."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    loaded = set(done.stdout.split())
    assert "decoding" in loaded
    assert not LEARNING & loaded
    assert not [name for name in loaded if name.startswith("torch.utils.tensorboard")]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_is_short_enough_to_read_at_once(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_FILE, (
        f"{relative(path)} has {lines} lines: give one of its nouns a file of its own"
    )


# --- the reader of imports itself -------------------------------------------------------------------------


def test_imports_are_found_wherever_they_hide() -> None:
    source = """
import a.b
from c import d
from . import e
from ..f import g
if TYPE_CHECKING:
    import h
else:
    import i
def late():
    import j
    importlib.import_module("k.l")
try:
    __import__("m")
except ImportError:
    from n.o import p as q
"""
    found = imports(source, "room.inner")
    assert found >= {
        "a.b",
        "c",
        "c.d",
        "room.inner.e",
        "room.f",
        "room.f.g",
        "h",
        "i",
        "j",
        "k.l",
        "m",
        "n.o.p",
    }
    assert top(found) == {"a", "c", "room", "h", "i", "j", "k", "m", "n"}
    assert found - imports(source, "room.inner", typing_only=False) == {"h"}
