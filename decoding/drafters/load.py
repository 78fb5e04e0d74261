"""Find and load a drafter for a target: `ngram`, a shipped head, a folder or a hub id."""

from __future__ import annotations

from pathlib import Path

from decoding.drafters.base import Drafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import CONFIG_FILE, WEIGHTS_FILE, EagleHead
from decoding.drafters.ngram import NgramDrafter
from decoding.models import LoadedModel, explain_hub_error

ASSETS = Path(__file__).resolve().parent.parent / "assets"


def load_drafter(name: str, model: LoadedModel, beam_width: int = 4) -> Drafter:
    """Load drafter `name` for `model` and make the target capture the layers it reads.

    Args:
        name: `ngram`; a head in `decoding/assets/` such as `smollm2-135m-eagle3`; a folder; or a hub id.
        model: the target it drafts for. A head for another target is refused.
        beam_width: of a head's tree; lookup drafts a chain.
    """
    if name == NgramDrafter.name:
        model.target.capture(())
        return NgramDrafter()
    head = EagleHead.load(_folder(name), model.target.config.num_hidden_layers)
    _check_fit(name, head, model)
    target = model.target
    drafter = EagleDrafter(head, target.embeddings, target.device, target.dtype, beam_width, name)
    target.capture(drafter.fused_layers)
    return drafter


def shipped_heads() -> list[str]:
    """Names of the heads in `decoding/assets/`."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{CONFIG_FILE}"))


def _folder(name: str) -> Path:
    if (ASSETS / name / CONFIG_FILE).is_file() and "/" not in name:
        return ASSETS / name
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    known = ", ".join([NgramDrafter.name, *shipped_heads()])
    if "/" not in name or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"unknown drafter {name!r}: not one of {known}, and not a folder here")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE]))
    except Exception as error:
        raise ValueError(explain_hub_error("drafter", name, error, known)) from error


def _check_fit(name: str, head: EagleHead, model: LoadedModel) -> None:
    config, target = head.config, model.target
    for what, mine, its in (
        ("hidden size", config.hidden_size, target.hidden_size),
        ("vocabulary size", config.vocab_size, target.vocabulary_size),
        ("fingerprint", config.target_fingerprint or target.fingerprint(), target.fingerprint()),
    ):
        if mine != its:
            raise ValueError(
                f"drafter {name} belongs to another target: its {what} is {mine}, "
                f"that of {model.name} is {its}"
            )
