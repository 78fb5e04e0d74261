"""Find and load a drafter for a target: `ngram`, a shipped head, a head or a causal language model by its
folder, file or hub id, or one of these with a lookup (`composite`, `merged`)."""

from __future__ import annotations

from pathlib import Path

from decoding import builtin
from decoding.artifacts import read_json
from decoding.calibration import Calibration
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import CONFIG_FILE, WEIGHTS_FILE, EagleHead
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.drafters.vocabulary import check_same_tokens
from decoding.drafters.with_lookup import BeamDrafter
from decoding.models import LoadedModel, explain_hub_error, load_model, user_path
from decoding.target import TargetModel

WITH_LOOKUP = ("composite", "merged")
ASSETS = Path(__file__).resolve().parent.parent / "assets"
_LONGEST_NAME = 1000


def load_drafter(
    name: str,
    model: LoadedModel,
    beam_width: int = 4,
    min_match: int = 2,
    lookup_depth: int = 6,
    calibrated: bool = True,
) -> Drafter:
    """Load drafter `name` for `model` and make the target capture the layers it reads.

    Args:
        name: `ngram`; a head in `decoding/assets/` such as `smollm2-135m-eagle3`; a folder with a head or a
            causal language model; the built-in `smollm2-135m`; a `.gguf` file; a hub id of a head or model.
            `composite` and `merged` add a lookup to the head shipped for the target, `composite:NAME` and
            `merged:NAME` to any of the above but `ngram`.
        model: the target it drafts for. A head for another target is refused, as is a language model of
            other tokens. It is loaded onto the target's device, in the target's dtype.
        beam_width: of a head's or language model's tree.
        min_match: shortest match that a lookup drafts from.
        lookup_depth: most tokens of the chain that a merged tree joins.
        calibrated: whether to take over a calibration.

    A calibration beside the weights is taken over; the lookup takes that of a head shipped for the target.

    Raises:
        ValueError: one line that names the drafter and what is missing, damaged or does not fit.
    """
    target = model.target
    kind, colon, rest = name.partition(":")
    drafter: Drafter
    if name == NgramDrafter.name or kind in WITH_LOOKUP:
        lookup = NgramDrafter(min_match, vocabulary_size=target.vocabulary_size, device=target.device)
        drafter = lookup
        if kind in WITH_LOOKUP:
            if colon and not rest:
                raise ValueError(
                    f"drafter {name!r} names no head: {kind}:NAME, or {kind} for the shipped one"
                )
            head_name = rest if colon else _shipped_for(model, kind)
            head = _load_head(head_name, model, beam_width, calibrated)
            if kind == "merged":
                drafter = MergedDrafter(head, lookup, lookup_depth, name)
            else:
                drafter = CompositeDrafter(head, lookup, name)
        elif calibrated and (shipped := shipped_head(target.text_fingerprint())) is not None:
            lookup.calibration = Calibration.load(ASSETS / shipped)
    else:
        drafter = _load_head(name, model, beam_width, calibrated)
    target.capture(drafter.fused_layers)
    return drafter


def shipped_head(target_fingerprint: str) -> str | None:
    """Name of the head that is shipped for a target, None if there is none."""
    for name in shipped_heads():
        config = read_json(ASSETS / name / CONFIG_FILE, "drafter config")
        if config.get("target_fingerprint") == target_fingerprint:
            return name
    return None


def _shipped_for(model: LoadedModel, kind: str) -> str:
    name = shipped_head(model.target.text_fingerprint())
    if name is None:
        raise ValueError(
            f"drafter {kind} needs a head, and none is shipped for {model.name}: name one, {kind}:FOLDER"
        )
    return name


def _load_head(name: str, model: LoadedModel, beam_width: int, calibrated: bool) -> BeamDrafter:
    """What drafts trees by itself: a head or a causal language model."""
    if name == NgramDrafter.name or name.partition(":")[0] in WITH_LOOKUP:
        raise ValueError(f"drafter {name!r} is no head: after the colon name a head or a language model")
    target = model.target
    folder = _head_folder(name)
    if folder is None:
        small = _load_causal_lm(name, model, beam_width)
        if calibrated and (path := user_path(name)).is_dir():
            small.calibration = _calibration_of(path, small, target)
        return small
    head = EagleHead.load(folder, target.own_layers)
    if misfit := head.config.misfit(target):
        raise ValueError(f"drafter {name} belongs to another target than {model.name}: {misfit}")
    drafter = EagleDrafter(head, target.embeddings, target.device, target.dtype, beam_width, name)
    if target.fast is not None:
        drafter.use_fast_path()
    if calibrated:
        drafter.calibration = _calibration_of(folder, drafter, target)
    return drafter


def _calibration_of(folder: Path, drafter: BeamDrafter, target: TargetModel) -> Calibration | None:
    calibration = Calibration.load(folder)
    if calibration is None:
        return None
    for what, given in (("drafter", drafter.head_fingerprint), ("target", target.text_fingerprint())):
        if (measured := calibration.fingerprints[what]) != given:
            raise ValueError(
                f"the calibration in {folder} was measured on {what} {measured}, this is {given}: run "
                "train.py calibrate, or remove the file"
            )
    return calibration


def shipped_heads() -> list[str]:
    """Names of the heads in `decoding/assets/`."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{CONFIG_FILE}"))


def _head_folder(name: str) -> Path | None:
    """Folder of the head that `name` stands for; None if it is a causal language model's name."""
    known = ", ".join([NgramDrafter.name, *WITH_LOOKUP, *shipped_heads(), builtin.NAME])
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
        path = "eager" if target.fast is None else "auto"
        drafter = load_model(name, target.device, target.dtype, path)
    except ValueError as error:
        raise ValueError(f"drafter {name}: {error}") from error
    check_same_tokens(name, drafter, model)
    return CausalLMDrafter(drafter.target, target, beam_width, name)
