"""A seed replays a text: twice, under any controller, on other threads, in another process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import FixedController, PlainController, SpeculativeDecoder
from decoding.__main__ import main
from decoding.controller import Controller
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.models import load_model
from tests.fakes import ScriptController

ROOT = Path(__file__).resolve().parent.parent
SAMPLED: dict[str, Any] = {"max_new_tokens": 10, "temperature": 1.0}


@pytest.fixture(scope="module")
def decoder(folder: Path) -> SpeculativeDecoder:
    """Drafts with a blurred copy of the target: right now and then, at any temperature."""
    model, copy = (load_model(str(folder), "cpu", "float64") for _ in range(2))
    weight = copy.target.model.lm_head.weight
    blur = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight.add_(blur, alpha=0.1)
    made = SpeculativeDecoder(model, CausalLMDrafter(copy.target, model.target, beam_width=2))
    for rule in ("coupled", "rejection"):
        options: dict[str, Any] = {**SAMPLED, "max_new_tokens": 30, "rule": rule}
        generation = made.generate("ab", controller=FixedController(2, 4), seed=1, **options)
        assert 1.2 < generation.acceptance_length < 2.8, "else controllers would make no difference"
    return made


def controllers(draft: list[bool], sizes: list[int]) -> list[Controller]:
    """Fresh ones: a script goes on where it stopped."""
    return [PlainController(), FixedController(2, 5), ScriptController(draft, sizes)]


@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    prompt=st.text("abé ", min_size=1, max_size=5),
    changed=st.sampled_from([{}, {"top_p": 0.8}, {"repetition_penalty": 1.4, "min_p": 0.02}]),
    draft=st.lists(st.booleans(), min_size=1, max_size=6).map(lambda draft: [*draft, True]),
    sizes=st.lists(st.sampled_from([0, 1, 3, 9]), min_size=1, max_size=3),
)
@settings(max_examples=4)
def test_equal_seeds_give_equal_texts(
    decoder: SpeculativeDecoder,
    seed: int,
    prompt: str,
    changed: dict[str, Any],
    draft: list[bool],
    sizes: list[int],
) -> None:
    """`coupled`: one text, whoever controls. `rejection`: for each controller one of its own."""
    coupled, rejection = [], []
    for _ in range(2):
        options = {**SAMPLED, **changed, "seed": seed}
        for controller in controllers(draft, sizes):
            coupled.append(decoder.generate(prompt, controller=controller, **options).token_ids)
        options["rule"] = "rejection"
        made = [decoder.generate(prompt, controller=who, **options) for who in controllers(draft, sizes)]
        rejection.append([one.token_ids for one in made])
    assert all(text == coupled[0] for text in coupled)
    assert rejection[0] == rejection[1]


@pytest.mark.slow
def test_equal_seeds_give_equal_texts_on_one_thread_and_on_two(decoder: SpeculativeDecoder) -> None:
    """In double precision: sums in another order would have to move a token across a tie."""
    before = torch.get_num_threads()
    texts = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            for rule in ("coupled", "rejection"):
                options: dict[str, Any] = {**SAMPLED, "max_new_tokens": 5, "rule": rule, "seed": 11}
                made = decoder.generate("ab", controller=FixedController(2, 4), **options)
                texts.append(made.token_ids)
    finally:
        torch.set_num_threads(before)
    assert texts[:2] == texts[2:]


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_the_recorded_seed_replays_a_call_without_one(decoder: SpeculativeDecoder, rule: Any) -> None:
    first = decoder.generate("ab", rule=rule, **SAMPLED)
    second = decoder.generate("ab", rule=rule, **SAMPLED)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    for made in (first, second):
        again = decoder.generate("ab", rule=rule, seed=made.seed, **SAMPLED)
        assert (again.token_ids, again.text, again.seed) == (made.token_ids, made.text, made.seed)
        pieces = decoder.stream("ab", rule=rule, seed=made.seed, **SAMPLED)
        assert "".join(piece.text for piece in pieces) == made.text


def test_a_request_leaves_nothing_behind(decoder: SpeculativeDecoder) -> None:
    """No state of an earlier request, and none of torch's generator, is in a text."""
    alone = decoder.generate("ab", seed=7, **SAMPLED).token_ids
    torch.manual_seed(1)
    for other in decoder.stream("zz", seed=8, **SAMPLED):
        assert decoder.generate("ab", seed=7, **SAMPLED).token_ids == alone, other
        torch.rand(3)


@pytest.mark.slow
def test_the_command_prints_a_seed_that_replays_its_text_in_another_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["ab", "--target", str(folder), "--drafter", "ngram", "--temperature", "1", "--device", "cpu"]
    flags += ["--max-new-tokens", "12", "--dtype", "float64"]
    command = [sys.executable, "-m", "decoding", *flags]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr.decode()
    text, _, last = done.stdout.decode().rstrip("\n").rpartition("\n\n")
    seed = re.search(r"tokens/s, tau [\d.]+, seed (\d+)$", last)
    assert seed, last
    assert main([*flags, "--seed", seed[1]]) == 0
    again, _, last = capsys.readouterr().out.rstrip("\n").rpartition("\n\n")
    assert again == text
    assert last.endswith(f", seed {seed[1]}")
