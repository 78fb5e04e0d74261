"""What one cycle did: frozen, free of tensors. Stored facts are fields, derived facts are properties."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """Wall-clock seconds of a cycle by phase. `policy` is everything between a question and its answer:
    the controller with its features."""

    draft: float = 0.0
    select: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    policy: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.select + self.verify + self.commit + self.policy

    @property
    def work(self) -> float:
        """The cycle without the time that answers took. What an environment rewards: while a policy trains,
        answers take as long as the training loop does."""
        return self.total - self.policy


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """One draft, one selection, one verification, one commit.

    Attributes:
        draft_depth: levels drafted; 0 = a plain step, or a lookup alone that a merged tree was asked for.
        verification_size: drafted nodes that the target scored, root excluded.
        accepted_by_depth: one entry for each depth at which a verified candidate followed an accepted path:
            whether one was accepted there. Only the last entry can be False.
        token_ids: the tokens committed, closing token included, cut at end-of-text.
        context_length: committed tokens before the cycle, the prompt included.
        seconds: where the time went.
        log_probs: of each token committed, natural logarithm, under the target's own distribution
            (temperature 1, no filter, no processor); empty unless asked for.
    """

    draft_depth: int
    verification_size: int
    accepted_by_depth: tuple[bool, ...]
    token_ids: tuple[int, ...]
    context_length: int
    seconds: PhaseSeconds
    log_probs: tuple[float, ...] = ()

    @property
    def emitted(self) -> int:
        return len(self.token_ids)

    @property
    def accepted(self) -> int:
        """Drafted tokens that the target agreed with (an end-of-text among them can cut `emitted` below)."""
        return sum(self.accepted_by_depth)

    @property
    def tokens_per_second(self) -> float:
        return self.emitted / self.seconds.total
