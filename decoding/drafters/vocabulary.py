"""Whether a drafting model speaks the target's tokens: the same strings and special ids, not only as many.

Sizes of embeddings say nothing: models of one tokenizer pad them differently, models of two may agree.
"""

from __future__ import annotations

from typing import Any

from decoding.models import LoadedModel


def check_same_tokens(name: str, drafter: LoadedModel, target: LoadedModel) -> None:
    """ValueError, in one line with both names, if the tokenizers' vocabularies or special ids differ."""
    mine, its = drafter.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    way_out = "use a drafter that shares the target's tokenizer"
    if len(mine) != len(its):
        raise ValueError(
            f"drafter {name} has another vocabulary than {target.name}: {len(mine)} token strings, "
            f"that of {target.name} has {len(its)}; {way_out}"
        )
    if mine != its:
        first = min(number for pair in mine.items() ^ its.items() for number in pair[1:])
        raise ValueError(
            f"drafter {name} has another vocabulary than {target.name}: token {first} is "
            f"{_string(mine, first)}, that of {target.name} is {_string(its, first)}; {way_out}"
        )
    my_special, its_special = special_ids(drafter.tokenizer), special_ids(target.tokenizer)
    if my_special != its_special:
        first = min(my_special ^ its_special)
        where, where_not = (name, target.name) if first in my_special else (target.name, name)
        raise ValueError(
            f"drafter {name} has other special tokens than {target.name}: token {first}, "
            f"{_string(mine, first)}, is special in {where} and not in {where_not}; {way_out}"
        )


def special_ids(tokenizer: Any) -> set[int]:
    """Ids that a tokenizer flags as special, by role (end of text, padding) or as added tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return set(tokenizer.all_special_ids) | {number for number, token in added.items() if token.special}


def _string(vocabulary: dict[str, int], wanted: int) -> str:
    """The string of an id as Python would write it, cut where it is long; `no token` where there is none."""
    strings = sorted(string for string, number in vocabulary.items() if number == wanted)
    return repr(strings[0][:40]) if strings else "no token"
