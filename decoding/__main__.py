"""The command line: `python -m decoding PROMPT` streams a text and ends with tokens/s and tau."""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # An interrupt while modules are imported ends it without a traceback; `main` handles later ones.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def parser() -> argparse.ArgumentParser:
    """Every flag of the command."""
    flags = argparse.ArgumentParser(prog="python -m decoding", description=__doc__, allow_abbrev=False)
    flags.add_argument(
        "prompt", help="the user's message (completed as it stands by a model without chat template)"
    )
    flags.add_argument("--target", default="smollm2-135m", help="built-in name, folder, GGUF file or hub id")
    flags.add_argument(
        "--drafter",
        help="ngram, a shipped head, a folder or a hub id; composite or merged (:NAME) add lookup to a head",
    )
    flags.add_argument(
        "--policy", help="folder of an exported policy; none = the setting on the drafter's card"
    )
    flags.add_argument("--beam-width", type=int, default=4, help="of a head's or language model's tree")
    flags.add_argument("--min-match", type=int, default=2, help="shortest match that a lookup drafts from")
    flags.add_argument("--lookup-depth", type=int, default=6, help="most tokens that merged joins to a tree")
    flags.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    flags.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16 or float64")
    flags.add_argument(
        "--path",
        default="auto",
        choices=("auto", "fast", "eager"),
        help="fast: native code on the CPU; eager: transformers; auto: fast where it can be",
    )
    flags.add_argument("--temperature", type=float, default=0.0, help="0 = greedy")
    flags.add_argument("--top-k", type=int, help="keep the k likeliest tokens")
    flags.add_argument("--top-p", type=float, help="keep the likeliest tokens up to this mass")
    flags.add_argument("--min-p", type=float, help="keep tokens at least this share as likely as the best")
    flags.add_argument("--repetition-penalty", type=float, help="above 1: makes what was said less likely")
    flags.add_argument("--stop", action="append", default=[], help="string that ends the text; repeatable")
    flags.add_argument(
        "--rule",
        default="coupled",
        help="coupled (plain decoding's text, the default) or rejection (the target's law)",
    )
    flags.add_argument("--max-new-tokens", type=int, default=128, help="default: 128")
    flags.add_argument("--seed", type=int, help="none = a fresh one, printed at the end")
    flags.add_argument(
        "--compare", action="store_true", help="decode once more without drafting; say the speed-up"
    )
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 2 and one line on standard error for a user's mistake."""
    options = parser().parse_args(arguments)
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run(options)
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away, as `head` does; a second failure at exit would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    """Load, stream, summarise."""
    # Imported here, under the caller's handlers: an interrupt in the seconds that it takes is no fault.
    from decoding import native
    from decoding.controller import PlainController
    from decoding.decoder import SpeculativeDecoder, fresh_seed
    from decoding.exported import trained_drafter
    from decoding.exported_cycle import load_policy
    from decoding.machine import use_threads
    from decoding.sampling import Sampling
    from decoding.session import check_rule
    from decoding.stopping import check_stop_strings

    use_threads(None)
    sampling = {name: getattr(options, name) for name in SAMPLING}
    # A typing mistake need not wait for the load.
    Sampling(**sampling)
    check_stop_strings(options.stop)
    check_rule(options.rule)
    if not options.prompt.strip():
        raise ValueError("the prompt is empty: give some text")
    drafter = options.drafter
    if options.policy is not None:
        info = load_policy(options.policy).info  # nor need one in this folder
        # The one that it was trained for, unless another is named, which is then refused if it is another.
        drafter = drafter or trained_drafter(info.training)
    if options.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens is {options.max_new_tokens}, must be >= 1")
    decoder = SpeculativeDecoder.from_pretrained(
        options.target,
        drafter,
        dtype=options.dtype,
        device=options.device,
        path=options.path,
        beam_width=options.beam_width,
        min_match=options.min_match,
        lookup_depth=options.lookup_depth,
    )
    if options.path == "auto" and decoder.target.fast is None and native.missing():
        print(f"note: the slow path decodes: {native.missing()}", file=sys.stderr)
    if options.policy is not None:
        for warning in decoder.use_policy(Path(options.policy)):
            print(f"warning: {warning}", file=sys.stderr)
    prompt = decoder.as_user(options.prompt)
    seed = fresh_seed() if options.seed is None else options.seed
    settings = {
        "max_new_tokens": options.max_new_tokens,
        "stop": options.stop,
        "rule": options.rule,
        "seed": seed,
        **sampling,
    }
    if options.compare:
        decoder.generate(prompt, **{**settings, "max_new_tokens": 4})  # every shape warm before it is timed
    cycles = []
    for piece in decoder.stream(prompt, **settings):
        print(piece.text, end="", flush=True)
        cycles.append(piece.cycle)
    emitted = sum(record.emitted for record in cycles)
    speed = emitted / sum(record.seconds.total for record in cycles)
    line = f"{emitted} tokens, {speed:.1f} tokens/s, tau {emitted / len(cycles):.2f}"
    if options.compare:
        plain = decoder.generate(prompt, **settings, controller=PlainController())
        ids = [token for record in cycles for token in record.token_ids]
        plain_speed = plain.tokens_per_second
        line += f", {speed / plain_speed:.2f}x plain decoding ({plain_speed:.1f} tokens/s)"
        if plain.token_ids == ids:
            line += ", same text"
        elif options.rule == "rejection" and options.temperature > 0:
            line += ", another text of the same law"
        else:
            line += ", TEXT DIFFERS (floating-point tie or fault)"
    print(f"\n\n{line}" + (f", seed {seed}" if options.temperature > 0 else ""), flush=True)


if __name__ == "__main__":
    sys.exit(main())
