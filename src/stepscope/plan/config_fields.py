"""The fields of a stranger's config.json, each checked as it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.errors import InputError

# Far above any model; what keeps a mistyped file from asking for absurd arithmetic.
MAX_COUNT = 10**8
MAX_LAYERS = 10**5
_MAX_SHOWN = 60


class Fields:
    """Named values of one config.

    The first name of a question that the config has is the answer.
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where
        self.notes: list[str] = []

    def count(
        self, *names: str, default: int | None = None, at_least: int = 1, at_most: int = MAX_COUNT
    ) -> int:
        """A whole number; without a default it must be there."""
        name, value = self._first(names)
        if value is None:
            if default is None:
                raise InputError(
                    f"{self.where}: no {' or '.join(names)}: not a config of a transformer, or one "
                    "we cannot read"
                )
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not at_least <= value <= at_most
        ):
            raise InputError(
                f"{self.where}: {name} must be a whole number from {at_least} to {at_most}, not "
                f"{self._shown(value)}"
            )
        return value

    def flag(self, *names: str, default: bool) -> bool:
        name, value = self._first(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(
                f"{self.where}: {name} must be true or false, not {self._shown(value)}"
            )
        return value

    def word(self, name: str) -> str:
        """A word; empty where there is none."""
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise InputError(f"{self.where}: {name} must be a word, not {self._shown(value)}")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """A list of words; empty where there is none."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InputError(
                f"{self.where}: {name} must be a list of words, not {self._shown(value)}"
            )
        return tuple(value)

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty where there is none."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        ):
            raise InputError(
                f"{self.where}: {name} must be a list of whole numbers, not {self._shown(value)}"
            )
        return tuple(value)

    def inner(self, name: str) -> Fields:
        """The fields of a config inside this one; none where it has no such config."""
        value = self.values.get(name)
        if value is None:
            return Fields({}, f"{self.where}: {name}")
        if not isinstance(value, dict):
            raise InputError(
                f"{self.where}: {name} must be a group of fields, not {self._shown(value)}"
            )
        return Fields(value, f"{self.where}: {name}")

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def or_else(self, **defaults: object) -> Fields:
        """Add what a file may leave out to these fields."""
        fields = Fields(
            {
                **defaults,
                **{name: value for name, value in self.values.items() if value is not None},
            },
            self.where,
        )
        fields.notes = self.notes
        return fields

    def head_dim(self, hidden: int, heads: int) -> int:
        """Channels of one attention head.

        The config's own value, else the model's width over its heads.
        """
        if self.has("head_dim"):
            return self.count("head_dim")
        if hidden % heads:
            raise self.fault(
                f"a width of {hidden} cannot be shared by {heads} attention heads; give head_dim"
            )
        return hidden // heads

    def fault(self, message: str) -> InputError:
        return InputError(f"{self.where}: {message}")

    def _first(self, names: tuple[str, ...]) -> tuple[str, object]:
        return next(
            ((name, self.values[name]) for name in names if self.has(name)), (names[0], None)
        )

    @staticmethod
    def _shown(value: object) -> str:
        text = ascii(value)
        return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
