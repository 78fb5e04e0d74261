"""Find and load a drafter for a target: `ngram`, a shipped head, a head or a causal language model by its
folder, file or hub id."""

from __future__ import annotations

from pathlib import Path

from decoding import builtin
from decoding.artifacts import read_json
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import CONFIG_FILE, WEIGHTS_FILE, EagleHead
from decoding.drafters.ngram import NgramDrafter
from decoding.drafters.vocabulary import check_same_tokens
from decoding.models import LoadedModel, explain_hub_error, load_model, user_path

ASSETS = Path(__file__).resolve().parent.parent / "assets"
_LONGEST_NAME = 1000


def load_drafter(name: str, model: LoadedModel, beam_width: int = 4) -> Drafter:
    """Load drafter `name` for `model` and make the target capture the layers it reads.

    Args:
        name: `ngram`; a head in `decoding/assets/` such as `smollm2-135m-eagle3`; a folder with a head or a
            causal language model; the built-in `smollm2-135m`; a `.gguf` file; a hub id of a head or model.
        model: the target it drafts for. A head for another target is refused, as is a language model of
            other tokens. It is loaded onto the target's device, in the target's dtype.
        beam_width: of a head's or language model's tree; lookup drafts a chain.

    Raises:
        ValueError: one line that names the drafter and what is missing, damaged or does not fit.
    """
    target = model.target
    drafter: Drafter
    if name == NgramDrafter.name:
        drafter = NgramDrafter(vocabulary_size=target.vocabulary_size, device=target.device)
    elif (folder := _head_folder(name)) is not None:
        head = EagleHead.load(folder, target.config.num_hidden_layers)
        _check_fit(name, head, model)
        drafter = EagleDrafter(head, target.embeddings, target.device, target.dtype, beam_width, name)
    else:
        drafter = _load_causal_lm(name, model, beam_width)
    target.capture(drafter.fused_layers)
    return drafter


def shipped_heads() -> list[str]:
    """Names of the heads in `decoding/assets/`."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{CONFIG_FILE}"))


def _head_folder(name: str) -> Path | None:
    """Folder of the head that `name` stands for; None if it is a causal language model's name."""
    known = ", ".join([NgramDrafter.name, *shipped_heads(), builtin.NAME])
    if not name or len(name) > _LONGEST_NAME or "\0" in name:
        raise ValueError(f"unknown drafter {name[:40]!r}: not one of {known}, and not a folder here")
    if (ASSETS / name / CONFIG_FILE).is_file() and "/" not in name:
        return ASSETS / name
    path = user_path(name)
    if name == builtin.NAME or path.suffix == ".gguf":
        return None
    if path.is_dir():
        return None if _is_language_model(path / CONFIG_FILE) else path
    if "/" not in name or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"unknown drafter {name!r}: not one of {known}, and not a folder here")
    if _is_language_model(_fetch(name, known, [CONFIG_FILE]) / CONFIG_FILE):
        return None
    return _fetch(name, known, [CONFIG_FILE, WEIGHTS_FILE])


def _fetch(name: str, known: str, files: list[str]) -> Path:
    """Local folder with these files of a hub id."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:
        raise ValueError(explain_hub_error("drafter", name, error, known)) from error


def _is_language_model(config_file: Path) -> bool:
    """Whether a config is a whole model's. A head's, ours or a public checkpoint's, says how many ids it
    drafts, or calls its architecture an EAGLE; it may name the model type of its layer all the same."""
    raw = read_json(config_file, "drafter config")
    is_head = "draft_vocab_size" in raw or "eagle" in str(raw.get("architectures")).lower()
    return "model_type" in raw and not is_head


def _load_causal_lm(name: str, model: LoadedModel, beam_width: int) -> CausalLMDrafter:
    target = model.target
    try:
        drafter = load_model(name, target.device, target.dtype)
    except ValueError as error:
        raise ValueError(f"drafter {name}: {error}") from error
    check_same_tokens(name, drafter, model)
    return CausalLMDrafter(drafter.target, target, beam_width, name)


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
