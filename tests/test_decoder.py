"""The decoder that people load, and its command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decoding import FixedController, PlainController, SpeculativeDecoder, native
from decoding.__main__ import main
from decoding.generation import Options
from decoding.text_stream import TextStream
from tests.cycle_world import exported


@pytest.fixture(scope="module")
def decoder(folder: Path, head: Path) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(str(folder), str(head), device="cpu", dtype="float64")


def test_text_messages_and_ids_are_prompts(decoder: SpeculativeDecoder) -> None:
    ids = decoder.encode("hi")
    assert decoder.encode([{"role": "user", "content": "hi"}]) == [1, *ids]
    assert decoder.encode(ids) == ids
    bad_prompts: tuple[Any, ...] = ([], [{"content": "x"}], [1, "x"], [True], b"hi", {1, 2}, None, "\udcff")
    for bad in (*bad_prompts, [{"role": "user", "content": 5}]):
        with pytest.raises(ValueError, match=r"prompt|content is 5"):
            decoder.encode(bad)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stream_and_generate_agree_whoever_controls(decoder: SpeculativeDecoder, temperature: float) -> None:
    options: Options = {"max_new_tokens": 30, "temperature": temperature}
    plain = decoder.generate("héllo", seed=4, controller=PlainController(), **options)
    for controller in (FixedController(1, 3), FixedController(4, 12), FixedController(0, 1)):
        generation = decoder.generate("héllo", seed=4, controller=controller, **options)
        assert generation.token_ids == plain.token_ids
        pieces = list(decoder.stream("héllo", seed=4, controller=controller, **options))
        assert "".join(piece.text for piece in pieces) == generation.text
        assert sum(piece.cycle.emitted for piece in pieces) == len(generation.token_ids)
    assert plain.acceptance_length == 1
    assert plain.tokens_per_second > 0


def test_the_recorded_seed_repeats_a_sampled_text(decoder: SpeculativeDecoder) -> None:
    options: Options = {"max_new_tokens": 12, "temperature": 1.0}
    first = decoder.generate("a", **options)
    assert decoder.generate("a", seed=first.seed, **options).token_ids == first.token_ids
    assert decoder.generate("a", seed=first.seed + 1, **options).token_ids != first.token_ids


def test_bad_arguments_raise_before_the_first_piece(decoder: SpeculativeDecoder) -> None:
    for arguments, says in (
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"temperature": "x"}, "temperature is 'x'"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5"),
        ({"seed": "x"}, "seed is 'x'"),
    ):
        with pytest.raises(ValueError, match=says):
            decoder.stream("a", **arguments)
    with pytest.raises(ValueError, match="the prompt has 600 tokens"):
        decoder.stream("a" * 600)


def test_pieces_never_split_a_character(decoder: SpeculativeDecoder) -> None:
    ids = decoder.encode("aé世🙂b")
    stream = TextStream(decoder.tokenizer, [])
    pieces = [stream.push([token], last=place == len(ids) - 1) for place, token in enumerate(ids)]
    assert "".join(pieces) == "aé世🙂b"
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_piece_is_decoded_after_its_predecessor() -> None:
    """Tokenizers that drop the space before a text's first word must keep it between two pieces."""

    class Words:
        def decode(self, ids: list[int], **options: bool) -> str:
            return "".join(f" w{token}" for token in ids).removeprefix(" ")

    stream = TextStream(Words(), [7])
    assert [stream.push([token]) for token in (1, 2, 3)] == [" w1", " w2", " w3"]


def test_an_unfinished_character_is_shown_at_the_end(decoder: SpeculativeDecoder) -> None:
    stream = TextStream(decoder.tokenizer, [])
    ids = decoder.encode("é")
    assert stream.push(ids[:1]) == ""
    assert stream.push([], last=True) == "\ufffd"


@pytest.mark.parametrize("path", ["auto", "eager"])
def test_who_has_no_compiler_is_told_unless_the_slow_path_was_asked_for(
    folder: Path, path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "missing", lambda: "no tool: gcc not found")
    flags = ["--target", str(folder), "--drafter", "ngram", "--dtype", "float64", "--max-new-tokens", "2"]
    assert main(["hi", *flags, "--path", path]) == 0
    said = "note: the slow path decodes: no tool: gcc not found\n" if path == "auto" else ""
    assert capsys.readouterr().err == said


def test_the_command_line_streams_and_summarises(
    folder: Path, head: Path, capsys: pytest.CaptureFixture[str], decoder: SpeculativeDecoder
) -> None:
    flags = ["--target", str(folder), "--drafter", str(head), "--dtype", "float64", "--max-new-tokens", "9"]
    assert main(["hi", *flags, "--compare"]) == 0
    text, _, last = capsys.readouterr().out.rstrip("\n").rpartition("\n\n")
    assert text == decoder.generate(decoder.as_user("hi"), max_new_tokens=9).text.rstrip("\n")
    assert "tokens/s, tau" in last
    assert "x plain decoding" in last
    assert "same text" in last


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "./none"], "does not exist"),
        (["--drafter", "none"], "unknown drafter 'none'"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["--device", "cuda:99"], "is not there"),
        (["--dtype", "int3"], "unknown dtype 'int3'"),
        (["--policy", "./none"], "none/policy.json does not exist"),
        (["--policy", ""], "policy.json does not exist"),
        (["--target", "x" * 5000], "is no model name"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = [] if "--target" in arguments else ["--target", str(folder)]
    assert main(["hi", *target, *arguments]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert err.count("\n") == 1
    assert out == ""


def test_an_empty_prompt_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([" \n"]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


@pytest.mark.parametrize(("depth", "size"), [(-1, 8), (65, 8), (1, 0), (1.5, 8), (True, 8), (1, None)])
def test_an_impossible_fixed_setting_is_refused(depth: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"draft_depth|verification_size"):
        FixedController(depth, size)


def test_pieces_carry_the_seed_and_the_last_one_why_it_ended(decoder: SpeculativeDecoder) -> None:
    pieces = list(decoder.stream("a", max_new_tokens=9, temperature=1.0))
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    again = decoder.generate("a", max_new_tokens=9, temperature=1.0, seed=pieces[-1].seed)
    assert again.finish_reason == pieces[-1].finish_reason is not None
    assert again.text == "".join(piece.text for piece in pieces)


def test_a_stream_gives_what_is_complete_and_waits_for_the_rest(decoder: SpeculativeDecoder) -> None:
    """One token of "é" after another; a prompt that ends inside a character lends its tokens to nobody."""
    first, second = decoder.encode("é")
    stream = TextStream(decoder.tokenizer, decoder.encode("x"))
    assert stream.push([*decoder.encode("ab"), first]) == "ab"
    assert stream.push([second]) == "é"
    assert stream.push([first]) == ""
    assert stream.push([], last=True) == "\ufffd"
    stream = TextStream(decoder.tokenizer, [*decoder.encode("x"), first])
    assert stream.push([second, *decoder.encode("b")]) == "\ufffdb"


def test_options_that_are_none_are_left_out(decoder: SpeculativeDecoder) -> None:
    plain = decoder.generate("a", max_new_tokens=5)
    none = decoder.generate("a", max_new_tokens=5, logits_processors=None, stop=None, stop_token_ids=None)
    assert none.token_ids == plain.token_ids
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"logits_processors": max}, "logits_processors is <built-in function max>, must be a list"),
        ({"stop": 5}, "stop is 5, must be a string or a list of strings"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5, must be a list of token ids"),
    ]
    for options, says in wrong:
        with pytest.raises(ValueError, match=says):
            decoder.generate("a", **options)


def test_a_controller_that_counts_as_false_is_asked_all_the_same(decoder: SpeculativeDecoder) -> None:
    class Empty(FixedController):
        def __len__(self) -> int:
            return 0

    cycles = decoder.generate("a", max_new_tokens=6, controller=Empty(0, 1)).cycles
    assert {cycle.draft_depth for cycle in cycles} == {0}


def test_a_stop_string_that_ends_with_the_text_is_the_reason(decoder: SpeculativeDecoder) -> None:
    """It holds half a character, so it is complete only once no other half can follow."""
    model = decoder.model
    (half, _) = decoder.encode("é")

    def only_half(ids: Any, scores: Any) -> Any:
        return scores.index_fill(1, scores.new_tensor([half]).long(), 1e9)

    generation = decoder.generate("a", max_new_tokens=1, logits_processors=[only_half], stop="\ufffd")
    assert (model.end_ids, generation.text, generation.finish_reason) == (model.end_ids, "", "stop_string")


@pytest.mark.parametrize("model", ["null", '"abc"', "[]", '{"drafter": 5}'])
def test_a_policy_that_names_no_drafter_is_refused(
    model: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = exported(tmp_path / "policy", training={"model": json.loads(model)})
    assert main(["hi", "--target", str(folder), "--policy", str(policy)]) == 2
    err = capsys.readouterr().err
    assert "the policy's training names no drafter but" in err
    assert err.count("\n") == 1
