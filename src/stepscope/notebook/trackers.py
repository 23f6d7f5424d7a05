"""As `stepscope.doors.trackers`, which has them now."""

from stepscope.doors.trackers import log_to_mlflow, log_to_tensorboard, log_to_wandb

__all__ = ["log_to_mlflow", "log_to_tensorboard", "log_to_wandb"]
