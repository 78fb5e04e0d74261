"""Profiles that say little: what is warned of where their costs are used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commands.profile_table import doubts
from tests.test_replay_session import profile


@pytest.mark.parametrize(
    ("note", "found"),
    [
        ({}, []),
        ({"held_out": None, "disturbed_share": 0.0}, []),
        ({"held_out": {"median": 0.2}, "disturbed_share": 0.5}, []),
        ({"held_out": {"median": 0.564}}, ["a median error of 56%, more than 20%"]),
        ({"disturbed_share": 1.0}, ["disturbed 100% of the profile's cycles, more than 50%"]),
        (
            {"held_out": {"median": 0.3}, "disturbed_share": 0.6},
            ["a median error of 30%, more than 20%", "disturbed 60% of the profile's cycles, more than 50%"],
        ),
        ({"held_out": 3, "disturbed_share": "much"}, []),
        ({"held_out": {"median": None}}, []),
    ],
)
def test_doubts(note: dict[str, object], found: list[str]) -> None:
    said = doubts(replace(profile(), note=note))
    assert len(said) == len(found)
    for mine, wanted in zip(said, found, strict=True):
        assert wanted in mine
        assert mine.endswith("profile again on a quiet machine")
