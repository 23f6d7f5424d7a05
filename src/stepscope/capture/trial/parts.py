"""What a trial has beside a recording: settings applied on top of the job's, what makes two
trials alike, the loss, and what the steps computed."""

from __future__ import annotations

import sys

from stepscope.capture.losses import remember_unscaled
from stepscope.capture.session import Session
from stepscope.capture.trial.apply import apply
from stepscope.capture.trial.losses import Losses
from stepscope.capture.trial.numerics import Numerics
from stepscope.capture.trial.same_start import SameStart
from stepscope.capture.trial.session import TrialSession
from stepscope.protocol.run_folder import read_settings


def begin_parts(session: Session) -> None:
    """Adds them to a session that has just begun."""
    assert isinstance(session, TrialSession)
    torch = sys.modules["torch"]
    settings = read_settings(session.run)
    if settings:
        apply(session, settings, session.options.raised)
    session.listen(SameStart(session.guard, torch))
    remember_unscaled(session.guard)
    session.listen(Losses(session.guard, torch))
    if session.options.numerics:
        session.listen(Numerics(session.guard, torch), every_step=True)
