"""Stop strings: where the text ends, against a loop that decodes everything anew after every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import FixedController, PlainController, SpeculativeDecoder
from decoding.__main__ import main
from decoding.controller import Controller
from decoding.drafters.ngram import NgramDrafter
from decoding.models import LoadedModel, load_model
from decoding.stopping import StopStrings
from tests.fakes import ScriptController, save_tiny_model

BROKEN = "\ufffd"
# Tokens of several characters, of parts of them, and of both; they take the places of bytes that UTF-8 lacks.
LONGER = [
    text.encode()[start:stop]
    for text, start, stop in (
        ("ab", 0, None),
        ("ba", 0, None),
        ("aab", 0, None),
        ("bé", 0, 2),
        ("éa", 1, None),
        (" 🙂", 0, 3),
        ("🙂b", 2, None),
        ("é🙂", 1, 3),
        ("xaby", 0, None),
    )
]


@cache
def tokenizer() -> Any:
    """Byte-level, with `LONGER` in it; 259 tokens as the tiny model on disk has."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    shown = shown_bytes()
    unused = {bytes([value]): new for value, new in zip(range(0xF7, 0x100), LONGER, strict=True)}
    for value in range(256):
        token = unused.get(bytes([value]), bytes([value]))
        vocabulary["".join(shown[byte] for byte in token)] = len(vocabulary)
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


def shown_bytes() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(value if value in plain else next(others)) for value in range(256)]


def ids_of(*tokens: bytes) -> list[int]:
    vocabulary, shown = tokenizer().get_vocab(), shown_bytes()
    return [vocabulary["".join(shown[byte] for byte in token)] for token in tokens]


def decoded(ids: Sequence[int]) -> str:
    text: str = tokenizer().decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def settled(ids: Sequence[int]) -> str:
    """The text of these ids that no later token can change."""
    return decoded(ids).rstrip(BROKEN)


def reference(ids: Sequence[int], strings: Sequence[str]) -> tuple[int, str, bool]:
    """Tokens until a stop string is complete, the text before the earliest one, whether one came."""
    for length in range(1, len(ids) + 1):
        text = settled(ids[:length])
        places = [text.index(string) for string in strings if string in text]
        if places:
            return length, text[: min(places)], True
    return len(ids), decoded(ids), False


def shown_at_most(text: str, strings: Sequence[str]) -> str:
    """`text` without the longest ending that may yet become a stop string."""
    for start in range(len(text)):
        ending = text[start:]
        if any(len(ending) < len(string) and string.startswith(ending) for string in strings):
            return text[:start]
    return text


TOKENS = [*ids_of(b"a", b"b", b" ", *(bytes([byte]) for byte in "é🙂".encode()), *LONGER), 1]
STOPS = st.lists(st.text(st.sampled_from("aaabbb é🙂"), min_size=1, max_size=4), min_size=1, max_size=3)


@given(ids=st.lists(st.sampled_from(TOKENS), max_size=16), strings=STOPS, every=st.integers(1, 4))
@settings(max_examples=300)
def test_the_end_is_that_of_the_naive_loop_and_no_text_is_taken_back_or_kept_longer_than_needed(
    ids: list[int], strings: list[str], every: int
) -> None:
    length, text, comes = reference(ids, strings)
    stop = StopStrings(strings, tokenizer(), ids_of(b"b", b"a"))
    given_away = ""
    for place, token in enumerate(ids):
        done = stop.push(token)
        assert done == (comes and place + 1 == length)
        if done:
            assert stop.found in strings
            break
        if place % every == 0:
            given_away += stop.take(last=False)
            assert given_away == shown_at_most(settled(ids[: place + 1]), strings)
    stop.finish()
    given_away += stop.take(last=True)
    assert given_away == text
    assert stop.text == text
    assert (stop.found is not None) == comes


@pytest.mark.parametrize(
    ("tokens", "strings", "text", "found"),
    [
        ("a a b", ["ab", "b", "aab"], "", "aab"),
        ("a a b", ["ab", "b"], "a", "ab"),
        ("b a b", ["ab", "bab"], "", "bab"),
        ("aab", ["a", "aa", "ba"], "", "aa"),
        ("xaby", ["b", "ab"], "x", "ab"),
        ("xaby", ["y", "by"], "xa", "by"),
    ],
)
def test_the_earliest_beginning_wins_then_the_longest(
    tokens: str, strings: list[str], text: str, found: str
) -> None:
    stop = StopStrings(strings, tokenizer(), [])
    ids = ids_of(*(token.encode() for token in tokens.split()))
    assert [stop.push(token) for token in ids] == [False] * (len(ids) - 1) + [True]
    assert (stop.text, stop.found) == (text, found)


@pytest.mark.parametrize("strings", [[""], ["a", ""], [b"a"], [5], [None]], ids=repr)
def test_what_is_no_stop_string_is_refused_in_one_line(decoder: SpeculativeDecoder, strings: Any) -> None:
    with pytest.raises(ValueError, match=r"a stop string is .*, must be text of at least one") as caught:
        decoder.stream("a", stop=strings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ids", [["a"], [True], [1.0], "a"], ids=repr)
def test_what_is_no_stop_token_is_refused_in_one_line(decoder: SpeculativeDecoder, ids: Any) -> None:
    with pytest.raises(ValueError, match=r"a stop token id is .*, must be a whole number") as caught:
        decoder.stream("a", stop_token_ids=ids)
    assert "\n" not in str(caught.value)


# In sessions: a processor forces the text, lookup drafts it out of the prompt, any rule verifies it.


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> SpeculativeDecoder:
    return make_decoder(save_tiny_model(tmp_path_factory.mktemp("model")))


@cache
def make_decoder(folder: Path) -> SpeculativeDecoder:
    target = load_model(str(folder), "cpu", "float64").target
    model = LoadedModel("tiny", target, tokenizer(), frozenset([2]))
    return SpeculativeDecoder(model, NgramDrafter(1, vocabulary_size=target.vocabulary_size))


PROMPT = ids_of(b"a", b"b", b" ", *LONGER, b"a", b"a")


def forced(prompt: Sequence[int], text: Sequence[int]) -> Callable[..., torch.Tensor]:
    def force(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores.fill_(-torch.inf)[:, text[ids.shape[1] - len(prompt)]] = 0.0
        return scores

    return force


def check(
    decoder: SpeculativeDecoder,
    controller: Controller,
    text: Sequence[int],
    expected: tuple[list[int], str, str],
    *,
    prompt: Sequence[int] = (),
    **options: Any,
) -> int:
    """Generation and stream of a forced text end as expected (ids, text, reason); accepted drafts."""
    # The prompt holds the text, so that lookup drafts it.
    ids = [*(prompt or [*PROMPT, *text, 0])]
    options = {"max_new_tokens": len(text), "logits_processors": [forced(ids, text)], **options}
    made = decoder.generate(ids, controller=controller, log_probs=True, **options)
    assert (made.token_ids, made.text, made.finish_reason) == expected
    assert len(made.log_probs or ()) == len(made.token_ids)
    pieces = list(decoder.stream(ids, controller=controller, **options))
    assert "".join(piece.text for piece in pieces) == made.text
    assert [token for piece in pieces for token in piece.cycle.token_ids] == made.token_ids
    return sum(record.accepted for record in made.cycles)


@given(
    text=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=10),
    strings=STOPS,
    draft=st.lists(st.booleans(), min_size=1, max_size=5),
    temperature=st.sampled_from([0.0, 1.0]),
    rule=st.sampled_from(["coupled", "rejection"]),
)
@settings(max_examples=36)
def test_text_ends_before_the_first_stop_string_whatever_is_drafted(
    folder: Path, text: list[int], strings: list[str], draft: list[bool], temperature: float, rule: str
) -> None:
    length, shown, comes = reference(text, strings)
    reason = "stop_string" if comes else "length"
    check(
        make_decoder(folder),
        ScriptController([*draft, True], [9, 1, 4]),
        text,
        (text[:length], shown, reason),
        stop=strings,
        temperature=temperature,
        rule=rule,
    )


WORDS = ids_of(*(bytes([byte]) for byte in "ab é🙂b".encode()))


@pytest.mark.parametrize(
    ("stop", "tokens", "text"),
    [
        ("a", 1, ""),  # the first token
        ("ab ", 3, ""),
        ("b é", 5, "a"),  # over a character of two tokens
        ("é🙂", 9, "ab "),  # over two such
        ("🙂b", 10, "ab é"),  # the last token, with the token limit
        ("é🙂b", 10, "ab "),
    ],
)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_stop_string_at_every_place_of_a_block(
    decoder: SpeculativeDecoder, stop: str, tokens: int, text: str, rule: str
) -> None:
    accepted = 0
    for depth, size in ((0, 1), (1, 1), (2, 9), (3, 2), (9, 9)):
        expected = (WORDS[:tokens], text, "stop_string")
        accepted += check(decoder, FixedController(depth, size), WORDS, expected, stop=stop, rule=rule)
    assert accepted > 4 or tokens == 1, "hardly anything was accepted: the sweep proves little"


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_stop_string_ends_the_session_as_an_end_token_does(decoder: SpeculativeDecoder, rule: Any) -> None:
    """The cache keeps all committed tokens but the last, no token follows, no cycle either."""
    prompt = [*PROMPT, *WORDS, 0]
    for depth, stop in product((0, 2, 4, 9), ("a", " é", "🙂b")):
        session = decoder.open_session(
            prompt, stop=stop, rule=rule, logits_processors=[forced(prompt, WORDS)], max_new_tokens=10
        )
        for _ in session.run(FixedController(depth, 9)):
            assert session.cache.length == len(session.committed) - 1
        assert session.generated == WORDS[: reference(WORDS, [stop])[0]]
        with pytest.raises(ValueError, match="the request is finished"):
            next(session.cycle())


def test_a_stop_string_of_the_prompt_or_none_at_all_ends_nothing(decoder: SpeculativeDecoder) -> None:
    """Neither one within the prompt nor one that the text completes."""
    prompt = ids_of(b"z", b"a", b"b", b"a", b"a")
    for strings in (["z"], ["aab"], ["ba", "aaa"], ["zz", "ab é🙂bb", "q"]):
        for controller in (PlainController(), FixedController(3, 9)):
            expected = (WORDS[1:], "b é🙂b", "length")
            check(decoder, controller, WORDS[1:], expected, prompt=prompt, stop=strings)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_the_reason_is_what_ended_the_text(decoder: SpeculativeDecoder, rule: str) -> None:
    """End ids, stop ids, stop strings and the limit, alone and on one token: the text is cut if and only if a
    stop string came, and that is then the reason."""
    end = [*WORDS[:3], 2, *WORDS]
    b = WORDS[1]
    for depth in (0, 3):
        run = partial(check, decoder, FixedController(depth, 9), rule=rule)
        run(end, (end[:4], "ab ", "end_token"), stop=["é", "q"], stop_token_ids=[WORDS[3]])
        run(end, (end[:4], "ab ", "end_token"), max_new_tokens=4, stop="é")
        run(end, (end[:3], "ab ", "length"), max_new_tokens=3, stop="é")
        run(end, (end[:3], "ab", "stop_string"), max_new_tokens=3, stop=" ")
        run(WORDS, (WORDS[:2], "ab", "end_token"), stop_token_ids=[b, 2], stop=["é", "bb"])
        run(WORDS, (WORDS[:2], "ab", "end_token"), stop_token_ids=[b], max_new_tokens=2)
        run(WORDS, (WORDS[:2], "a", "stop_string"), stop_token_ids=[b], stop="b")
        run(WORDS, (WORDS[:2], "", "stop_string"), stop_token_ids=[b], stop="ab", max_new_tokens=2)
        # An unfinished character is shown as broken, and is no stop string's.
        run(WORDS[:4], ([*WORDS[:4]], "ab " + BROKEN, "length"), stop=["é", " é"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampled_texts_stop_at_every_depth_and_size_where_plain_decoding_stops(
    decoder: SpeculativeDecoder, temperature: float
) -> None:
    """Nothing forced: stop strings cut out of a text that the model wrote."""
    options: dict[str, Any] = {"max_new_tokens": 24, "temperature": temperature, "seed": 3}
    plain = decoder.generate(PROMPT, controller=PlainController(), **options)
    clean = [part for part in plain.text.split(BROKEN) if part]
    assert len(clean) > 2
    for strings in ([clean[0][-1:]], [clean[-1]], [clean[1], clean[-1][-2:]]):
        length, text, comes = reference(plain.token_ids, strings)
        assert comes
        for controller in (PlainController(), FixedController(1, 2), FixedController(4, 9)):
            made = decoder.generate(PROMPT, controller=controller, stop=strings, **options)
            assert made.token_ids == plain.token_ids[:length]
            assert (made.text, made.finish_reason) == (text, "stop_string")


def test_pieces_joined_are_the_text_of_a_tokenizer_that_drops_a_leading_space(folder: Path) -> None:
    """As Llama's does: with a stop string or without, generated or streamed, the text begins alike."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({f"▁w{number}": number for number in range(259)}, unk_token="▁w0"))
    core.decoder = decoders.Metaspace()
    model = make_decoder(folder).model
    words = LoadedModel("words", model.target, PreTrainedTokenizerFast(tokenizer_object=core), model.end_ids)
    decoder = SpeculativeDecoder(words, NgramDrafter(1))
    for stop, text in (((), " w5 w6 w7"), ("q", " w5 w6 w7"), ("w7", " w5 w6 "), (" w5", "")):
        options: dict[str, Any] = {"max_new_tokens": 3, "logits_processors": [forced([9, 8], [5, 6, 7])]}
        assert decoder.generate([9, 8], stop=stop, **options).text == text
        assert "".join(piece.text for piece in decoder.stream([9, 8], stop=stop, **options)) == text


def test_the_command_line_takes_stop_strings(
    folder: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--target", str(folder), "--drafter", str(head), "--dtype", "float64", "--temperature", "1"]
    flags += ["--seed", "5", "--max-new-tokens", "24"]
    assert main(["hi", *flags]) == 0
    text = capsys.readouterr().out.rpartition("\n\n")[0]
    places = [place for place, letter in enumerate(text) if letter.isprintable() and letter != BROKEN]
    first, later = text[places[1]], text[places[-1]]
    assert main(["hi", *flags, "--stop", later, "--stop", first]) == 0
    stopped = capsys.readouterr().out.rpartition("\n\n")[0]
    assert stopped == text[: min(text.index(first), text.index(later))]
    assert main(["hi", *flags, "--stop", first, "--stop", ""]) == 2
    assert capsys.readouterr().err.startswith("error: a stop string is ''")
