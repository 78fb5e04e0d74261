"""`train.py texts`: the texts that a target writes itself, which its draft head is trained on."""

from __future__ import annotations

from pathlib import Path

from configs.command import chosen_seed
from configs.schema import Config
from decoding.machine import use_threads
from decoding.models import LoadedModel, load_model
from decoding.self_text import TextSettings, enough_shards, recorded_seed, write_texts
from decoding.text_plans import read_openings


def write_own_texts(config: Config, out: Path) -> None:
    """Let the target write the texts that its head is trained on, into `out/texts`."""
    threads = use_threads(config.threads)
    own_texts(
        load_model(config.model.target, config.model.device, "float32", "eager"),
        config,
        out / "texts",
        threads,
    )
    print(f"wrote {out / 'texts'}: train on it with --set drafter.corpus={out / 'texts'}")


def own_texts(model: LoadedModel, config: Config, folder: Path, threads: int) -> list[Path]:
    """The shards with `written_tokens` tokens, written where they are not there yet."""
    drafter = config.drafter
    recorded = recorded_seed(folder)
    settings = TextSettings(
        tokens=drafter.written_tokens,
        seed=recorded if recorded is not None and config.seed is None else chosen_seed(config),
        max_length=drafter.max_length,
        temperatures=tuple(drafter.written_temperatures),
        batch=drafter.written_batch,
    )
    for now in write_texts(model, folder, settings, read_openings(drafter.openings)):
        print(f"{now}, {threads} threads", flush=True)
    return enough_shards(folder, drafter.written_tokens)
