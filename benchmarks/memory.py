"""The memory that decoding takes beyond its process after its imports, in a fresh process for each arm.

What decoding needs is its weights and its caches; the rest is compared with a limit. Peaks are the kernel's
(VmHWM of /proc/self/status, set back between the phases, so that loading and decoding have each their own).
"After its imports" means torch, transformers and the decoder. What transformers imports only once it builds a
model, on the eager path, is in a column of its own: it is rest, but the limit is asked of what else there is.
A run before the first arm is not counted: it does what is to do once, see `benchmarks.startup`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.startup import run_python

# This file is imported into the processes that are measured: what is heavy is imported late.

LIMIT_MB = 200
# An arm: path, drafter ("" = the usual one), and the controller's draft depth and verification size.
ARMS: dict[str, dict[str, Any]] = {
    "plain": {"path": "auto", "drafter": "ngram", "setting": (0, 0)},
    "fixed 2x8": {"path": "auto", "drafter": "", "setting": (2, 8)},
    "plain, eager": {"path": "eager", "drafter": "ngram", "setting": (0, 0)},
    "fixed 2x8, eager": {"path": "eager", "drafter": "", "setting": (2, 8)},
}
STATUS = Path("/proc/self/status")
CHILD = "import sys; from benchmarks.memory import child; child(sys.argv[1])"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    from benchmarks.prompts import Parser, count
    from configs.command import exit_code

    parser = Parser(prog="python -m benchmarks.memory", description=__doc__, allow_abbrev=False)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", help="of the fixed setting; default: the head shipped for the target")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--context", type=count, default=512, help="tokens of the prompt")
    parser.add_argument("--new-tokens", type=count, default=32)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="also write the numbers, in bytes, to this file")
    return exit_code(lambda: run(parser.parse_args(arguments)), "nothing was written")


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    from decoding.artifacts import write_json

    if not STATUS.is_file():
        raise ValueError(f"{STATUS} is not there: this benchmark needs Linux")
    given = {name: getattr(options, name) for name in ("target", "dtype", "context", "new_tokens", "threads")}
    results: dict[str, dict[str, Any]] = {}
    for name, arm in (("uncounted", ARMS["plain"]), *ARMS.items()):
        drafter = arm["drafter"] or options.drafter
        results[name] = run_python(CHILD, json.dumps({**given, **arm, "drafter": drafter}))
    del results["uncounted"]
    console = Console()
    console.print(table(f"context {options.context}, {options.new_tokens} new tokens, MB", results))
    if options.json:
        write_json(options.json, results)


def child(given: str) -> None:
    """Load, decode one prompt, print what it took in bytes; in a process that does nothing else."""
    import torch

    import decoding.decoder
    from decoding.controller import FixedController, PlainController
    from decoding.drafters.load import load_drafter
    from decoding.machine import use_threads

    imports = resident()
    options = json.loads(given)
    use_threads(options["threads"])
    late_imports = 0
    if options["path"] == "eager":
        import_model_classes()
        late_imports = resident() - imports
    set_back_peak()
    model = decoding.decoder.load_model(options["target"], "cpu", options["dtype"], options["path"])
    name = options["drafter"] or decoding.decoder.default_drafter(options["target"])
    drafter = load_drafter(name, model)
    loading = peak() - imports
    set_back_peak()
    decoder = decoding.decoder.SpeculativeDecoder(model, drafter)
    ids = torch.randint(model.target.vocabulary_size, (options["context"],), generator=torch.manual_seed(0))
    session = decoder.open_session(ids.tolist(), max_new_tokens=options["new_tokens"])
    depth, size = options["setting"]
    for _ in session.run(FixedController(depth, size) if depth else PlainController()):
        pass
    decoded = peak() - imports
    numbers = {"late_imports": late_imports, "weights": weight_bytes(), "caches": cache_bytes()}
    numbers |= {"imports": imports, "loading": loading, "decoding": decoded}
    print(json.dumps({"target": type(model.target).__name__, **numbers}))


def import_model_classes() -> None:
    """What transformers imports for a model of any Llama-like family."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401


def weight_bytes() -> int:
    """Of every module and packed weight that is alive, each storage once."""
    from torch import nn

    from decoding.packed import PackedProduct, PackedStack

    # By type(): asked with isinstance, some objects of torch warn that they are deprecated.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    tensors = [tensor for one in modules for tensor in (*one.parameters(), *one.buffers())]
    tensors += [tensor for one in alive(PackedStack) for tensor in one._held]
    tensors += [one.packed for one in alive(PackedProduct)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def cache_bytes() -> int:
    """Of every key/value buffer that is alive, with the room it has not filled."""
    from decoding.kv_cache import KVBuffer
    from decoding.slot_cache import SlotCache

    tensors = [tensor for one in alive(KVBuffer) for tensor in (one._keys_BGTD, one._values_BGTD)]
    tensors += [tensor for one in alive(SlotCache) for tensor in (one._keys, one._values)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)


def alive(kind: type) -> list[Any]:
    """Every object of exactly this class."""
    return [one for one in gc.get_objects() if type(one) is kind]


def resident() -> int:
    """Bytes of this process in memory now."""
    return _status("VmRSS")


def peak() -> int:
    """Most bytes of this process in memory since `set_back_peak`."""
    return _status("VmHWM")


def set_back_peak() -> None:
    """Let the peak begin anew, at what is in memory now (man 5 proc: clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def table(title: str, results: dict[str, dict[str, Any]]) -> Table:
    """A row an arm and phase, in millions of bytes."""
    lines = Table(title=title)
    columns = ("peak", "weights", "caches", "rest", "of it late imports", f"else <= {LIMIT_MB}")
    for column in ("arm", "while", *columns):
        lines.add_column(column, justify="left" if column in ("arm", "while") else "right")
    for name, of in results.items():
        for phase in ("loading", "decoding"):
            caches = of["caches"] if phase == "decoding" else 0
            rest = of[phase] - of["weights"] - caches
            numbers = (of[phase], of["weights"], caches, rest, of["late_imports"])
            cells = [f"{number / 1e6:.0f}" for number in numbers]
            lines.add_row(name, phase, *cells, "yes" if rest - of["late_imports"] <= LIMIT_MB * 1e6 else "NO")
    return lines


if __name__ == "__main__":
    sys.exit(main())
