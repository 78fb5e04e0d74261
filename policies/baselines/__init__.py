"""Hand-written rules: what a learned policy is measured against.

Constants and expected gain over cost are functions of a policy's features, decided in replay a batch at a
time. The rules of other papers and decoders are controllers, one a file; `rules.py` lists them, `tuning.py`
chooses their parameters.
"""

from policies.baselines.constants import best_constant, constant, settings_of
from policies.baselines.deciding import Deciding, controller
from policies.baselines.expected_gain import (
    CONTEXT_STEP,
    MATCH_BUCKETS,
    ExpectedGain,
    fit_expected_gain,
)
from policies.baselines.live_expected_gain import LiveExpectedGain

__all__ = [
    "CONTEXT_STEP",
    "MATCH_BUCKETS",
    "Deciding",
    "ExpectedGain",
    "LiveExpectedGain",
    "best_constant",
    "constant",
    "controller",
    "fit_expected_gain",
    "settings_of",
]
