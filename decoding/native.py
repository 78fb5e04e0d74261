"""Build and load `native_code/`: one shared library a machine, compiled once, kept in the cache.

The library is found again by the hash of its source, the compiler and the processor. Where there is no C
compiler, or it fails, `library` raises `NoNativeCode` with the reason, and decoding takes the eager path.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from decoding.artifacts import atomic_path, cache_dir

SOURCE = Path(__file__).parent / "native_code" / "native.c"
# No -ffast-math: it may reorder sums, and the order is what makes a row independent of its neighbours.
FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast"),
    *("-pthread", "-fPIC", "-shared"),
)
_SECONDS = 120
_DIGEST = hashlib.sha256().digest_size


class NoNativeCode(Exception):
    """Why there is no native code on this machine."""


class Layer(ctypes.Structure):
    """`Layer` of native.c: addresses of packed weights and of vectors."""

    _fields_ = [
        (name, c_void_p)
        for name in (
            *("qkv", "out", "gate_up", "down"),
            *("qkv_bias", "out_bias", "attention_norm", "mlp_norm"),
        )
    ]


class Stack(ctypes.Structure):
    """`Stack` of native.c: the layers and what surrounds them."""

    _fields_ = [
        ("layers", POINTER(Layer)),
        *((name, c_void_p) for name in ("embeddings", "embedding_norm", "final_norm", "logits")),
        *((name, c_int64) for name in ("layer_count", "hidden", "intermediate")),
        *((name, c_int64) for name in ("heads", "kv_heads", "head_dim", "vocabulary")),
        *((name, c_int32) for name in ("half_layers", "half_logits")),
        ("eps", c_float),
    ]


class Slots(ctypes.Structure):
    """`Slots` of native.c: the cache."""

    _fields_ = [("keys", c_void_p), ("values", c_void_p), ("slots", c_int64)]


class Part(ctypes.Structure):
    """`Part` of native.c: the rows of one request and its cache."""

    _fields_ = [
        *((name, c_void_p) for name in ("keys", "values")),
        ("mask", c_char_p),
        *((name, c_int64) for name in ("slots", "first", "rows", "length", "seen")),
    ]


class Call(ctypes.Structure):
    """`Call` of native.c: one forward."""

    _fields_ = [
        ("parts", POINTER(Part)),
        *((name, c_void_p) for name in ("tokens", "positions", "states", "state_rows")),
        *((name, c_void_p) for name in ("cos", "sin", "captured", "capture", "scored")),
        *((name, c_void_p) for name in ("logits", "best", "best_tokens", "normalisers", "workspace")),
        *((name, c_int64) for name in ("rows", "part_count", "scored_count", "capture_count")),
        *((name, c_int64) for name in ("outputs", "width", "threads")),
        *((name, c_float) for name in ("kappa", "log_a")),
    ]


class Decision(ctypes.Structure):
    """`Decision` of decision.h: a policy's network, what it sees and what is allowed."""

    _fields_ = [
        *((name, c_void_p) for name in ("parameters", "widths")),
        *((name, c_int64) for name in ("layers", "widest")),
        *((name, c_void_p) for name in ("features", "allowed", "scratch", "outputs")),
        ("smooth", c_int32),
    ]


@functools.cache
def _found() -> ctypes.CDLL | str:
    """The library, or why there is none: a compiler that fails is not asked twice."""
    try:
        return _load()
    except NoNativeCode as error:
        return str(error)


def library() -> ctypes.CDLL:
    """The compiled library, its functions typed; `NoNativeCode` where it cannot be had."""
    found = _found()
    if isinstance(found, str):
        raise NoNativeCode(found)
    return found


def _load() -> ctypes.CDLL:
    path = _path()
    if not _is_whole(path):
        _compile(path)
    try:
        return _typed(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        path.unlink(missing_ok=True)  # what made it may be mended by the next run
        raise NoNativeCode(f"{path} cannot be compiled to something that loads: {error}") from None


def _is_whole(path: Path) -> bool:
    """Whether a library ends with the SHA-256 of what lies before: the loader would not notice a truncated
    or damaged one, and the process would die of it later. It takes no notice of what follows either."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]


def loaded() -> ctypes.CDLL | None:
    """The library if somebody has asked for it in this process; compiles nothing."""
    found = _found() if _found.cache_info().currsize else None
    return None if isinstance(found, str) else found


def missing() -> str:
    """Why the library that somebody has asked for in this process cannot be had; empty if it can, or nobody
    has."""
    found = _found() if _found.cache_info().currsize else ""
    return found if isinstance(found, str) else ""


def _typed(found: ctypes.CDLL) -> ctypes.CDLL:
    found.workspace_floats.argtypes = [POINTER(Stack), POINTER(Call)]
    found.workspace_floats.restype = c_int64
    found.forward.argtypes = [POINTER(Stack), POINTER(Call)]
    found.forward.restype = None
    found.keep.argtypes = [POINTER(Stack), POINTER(Slots), c_int64, c_void_p, c_int64]
    found.keep.restype = None
    found.product.argtypes = [c_void_p, c_int32, *(c_void_p,) * 3, *(c_int64,) * 3, c_void_p, c_int32]
    found.product.restype = None
    found.is_half.argtypes = [c_void_p, c_int64]
    found.is_half.restype = c_int32
    found.pack.argtypes = [c_void_p, c_int64, c_int64, c_int32, c_void_p, c_int32]
    found.pack.restype = None
    found.largest_of_rows.argtypes = [c_void_p, *(c_int64,) * 3, c_void_p, c_void_p]
    found.largest_of_rows.restype = None
    found.survival_of_rows.argtypes = [c_void_p, *(c_int64,) * 3, *(c_float,) * 2, c_int64, *(c_void_p,) * 3]
    found.survival_of_rows.restype = None
    found.survival_under_noise.argtypes = [
        *(c_void_p, c_int64, c_int64, c_int64, c_double, c_int64, c_void_p),
        *(c_float, c_float, c_int64),
        *(c_void_p,) * 4,
        c_int32,
    ]
    found.survival_under_noise.restype = None
    found.panel.restype = c_int64
    found.decide.argtypes = [POINTER(Decision)]
    found.decide.restype = c_int64
    found.uniforms.argtypes = [c_void_p, c_int64, c_void_p, c_int64, c_void_p]
    found.uniforms.restype = None
    found.contenders.argtypes = [c_void_p, c_int64, c_double, c_int64, c_int64, *(c_void_p,) * 3, c_int32]
    found.contenders.restype = c_int64
    return found


def _compiler() -> list[str]:
    """The compiler's path, and the arguments that `CC` may carry."""
    named = shlex.split(os.environ.get("CC", ""))
    for name, *arguments in [named] if named else [["gcc"], ["cc"], ["clang"]]:
        if path := shutil.which(name):
            return [path, *arguments]
    if named:
        raise NoNativeCode(f"no C compiler: CC names {named[0]!r}, which is not found")
    raise NoNativeCode("no C compiler: gcc, cc and clang not found; install gcc, or set CC")


def _path() -> Path:
    """Where this machine's library lies: its name changes with everything that it depends on."""
    compiler = _compiler()
    stat = Path(compiler[0]).resolve().stat()
    sources = [path.read_bytes() for path in sorted(SOURCE.parent.glob("*.[ch]"))]
    parts = (sources, repr(FLAGS), compiler, stat.st_size, stat.st_mtime_ns, _processor())
    digest = hashlib.sha256(b"\0".join(str(part).encode() for part in parts)).hexdigest()[:16]
    return cache_dir() / "native" / f"{digest}.so"


def _processor() -> str:
    """What `-march=native` looks at: a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    keys = ("model name", "flags", "Features", "CPU implementer", "CPU part")  # the last three: ARM
    found = (next((line for line in lines if line.startswith(key)), "") for key in keys)
    return platform.machine() + "".join(found)


def _compile(path: Path) -> None:
    print("compiling the fast path for this machine, once (a few seconds)", file=sys.stderr, flush=True)
    try:
        with atomic_path(path) as made:
            command = [*_compiler(), *FLAGS, str(SOURCE), "-o", str(made), "-lm"]
            status, said = _run(command)
            if status:
                lines = said.strip().splitlines() or [f"exit status {status}"]
                first = next((line for line in lines if "error" in line), lines[-1])
                raise NoNativeCode(f"{command[0]} cannot compile the fast path: {first.strip()[:200]}")
            digest = hashlib.sha256(made.read_bytes()).digest()
            with made.open("ab") as library:
                library.write(digest)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNativeCode(f"the fast path cannot be compiled into {path.parent}: {error}") from None


def _run(command: list[str]) -> tuple[int, str]:
    """Exit status and standard error; what the command has started ends with it, in time or not."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=_SECONDS)[1]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said.decode(errors="replace")
