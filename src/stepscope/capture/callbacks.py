"""Callbacks for trainers: each calls a Scope when a step is over."""

from __future__ import annotations

import importlib
from typing import Any

from stepscope.capture.api import Scope, profile


def transformers_callback() -> type:
    """The class for transformers' Trainer; transformers is imported now, not before."""
    base: Any = importlib.import_module("transformers").TrainerCallback

    class TransformersCallback(base):  # type: ignore[misc]
        """Records the steps of a transformers.Trainer.

        Trainer(..., callbacks=[stepscope.TransformersCallback()]).
        """

        def __init__(self, out: str | None = None, **options: Any) -> None:
            self.scope: Scope = profile(out, **options)

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.scope.__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.scope.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.scope.close()

    return TransformersCallback


def lightning_callback() -> type:
    """The class for Lightning's Trainer, of the package the job uses."""
    base: Any = _lightning().Callback

    class LightningCallback(base):  # type: ignore[misc]
        """Records the steps of a Lightning Trainer.

        Trainer(callbacks=[stepscope.LightningCallback()]).
        """

        def __init__(self, out: str | None = None, **options: Any) -> None:
            super().__init__()
            self.scope: Scope = profile(out, **options)
            self._num_steps = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            self._num_steps = trainer.global_step
            self.scope.__enter__()

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            # Batches whose gradients are only accumulated do not end a step.
            if trainer.global_step > self._num_steps:
                self._num_steps = trainer.global_step
                self.scope.step()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            self.scope.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
            self.scope.close()

    return LightningCallback


def _lightning() -> Any:
    try:
        return importlib.import_module("lightning.pytorch")
    except ImportError:
        return importlib.import_module("pytorch_lightning")
