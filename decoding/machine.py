"""The machine that decodes: threads, device and number format, chosen once."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def use_threads(threads: int | None) -> int:
    """Pin torch to `threads` CPU threads, None = `usual_threads()`; return how many."""
    most = os.cpu_count() or 1
    if threads is not None and not 1 <= threads <= most:
        raise ValueError(f"threads is {threads}, must be in 1..{most}, the cores of this machine")
    chosen = threads or usual_threads()
    torch.set_num_threads(chosen)
    return chosen


def usual_threads() -> int:
    """The cores this process may use, at most `OMP_NUM_THREADS` where that is set. torch's own default counts
    the machine's cores, not those that a container or `taskset` leaves."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wished = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wished) if wished.isdecimal() and int(wished) else cores)


class _Taken(threading.local):
    """What torch had when `native_alone` took it; None outside. OpenMP keeps a number for each thread."""

    team: int | None = None


_taken = _Taken()


class native_alone:
    """Let torch compute with one thread and native code with as many as torch had.

    torch's threads spin for milliseconds after an operation that used them, on the cores that the next
    forward's own threads want; what a cycle asks of torch is too small to be shared out.
    """

    def __enter__(self) -> None:
        self._outermost = _taken.team is None
        if self._outermost:
            _taken.team = torch.get_num_threads()
            torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        if self._outermost and _taken.team is not None:
            torch.set_num_threads(_taken.team)
            _taken.team = None


def native_threads() -> int:
    """How many threads native code computes with."""
    return torch.get_num_threads() if _taken.team is None else _taken.team


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """`auto` = CUDA if there is one, else the CPU. ValueError if the named device is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"unknown device {device!r}; use auto, cpu, cuda or cuda:N") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices"
        )
    return chosen


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | str:
    """`auto` = the checkpoint's own on CUDA; on CPUs bf16 where the processor multiplies it, else fp32."""
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        if device.type == "cuda":
            return "auto"
        return torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has bf16 dot products (avx512_bf16 or AMX); without them bf16 is emulated and slow."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(check() for name in checks if (check := getattr(torch.cpu, name, None)))


def device_name(device: torch.device) -> str:
    """What computes: the GPU's name, or the processor's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """The processor's name, as far as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    # On ARM the kernel gives no name, and elsewhere platform may know as little.
    return (named[0] if named else "") or platform.processor() or platform.machine() or "unknown"


def resident_mb() -> float | None:
    """Megabytes (10^6) that this process holds: what its CUDA device held at most, else its resident memory
    now. None where the system does not say."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 1e6
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
