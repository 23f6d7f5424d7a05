"""What verify says of intervals that hardly have an end."""

from __future__ import annotations

import math

from msgspec.structs import replace

from stepscope.core.experiments.experiment import Interval, Prediction
from stepscope.report.verify.view import prediction_words
from tests.wording import mentions

PREDICTED = Prediction(value=1.5, source="you", verdict="held")


def test_a_prediction_is_held_against_an_interval() -> None:
    words = prediction_words(PREDICTED, Interval(value=1.4, low=1.2, high=1.6, level=0.97))
    assert words == "you predicted 1.50x; it gave 1.40x (1.20-1.60): the prediction held"


def test_an_end_that_is_no_number_to_read_is_not_written_out() -> None:
    wide = Interval(value=1.4, low=math.exp(-700), high=math.exp(700), level=0.97)
    words = prediction_words(replace(PREDICTED, verdict="open"), wide)
    assert mentions(words, "1.50x", "1.40x", "not known", "no gain")
