"""The knobs of a search: what each may be, and how the job gets it.

    num_workers=0..16            whole numbers
    bucket_cap_mb=1..250:log     as many tries from 1 to 10 as from 10 to 100
    batch_size=16..128:step=16
    compile_mode=off,default     one of these
    fused_optimizer=on,off

A knob with a name of `protocol.settings` is set inside the job. Any other is given to the script,
as `--as` says: words at the end of the command (`--as chunk="--loss-chunks={}"`), or a variable of
its environment (`--as OMP=env:OMP_NUM_THREADS`).
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from stepscope.core.experiments.trials import Change, Value
from stepscope.errors import UsageError

HOOK, ARGUMENT, ENVIRONMENT = "hook", "argument", "environment"
FORMS = "Forms: a..b, a..b:log, a..b:step=k, or a list: x,y,z"
MAX_VALUES = 10_000
"""Values of one knob that is counted; a space of more is taken as continuous."""
_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})((?::[^:]*)*)")
_NEAR_RANGE = re.compile(
    rf"[\[(]?\s*({_NUMBER}?)\s*(?:\.{{2,}}|\.\.=|-|:|to|\s|;|~|,)\s*({_NUMBER})\s*[\])]?(.*)"
)
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


class Way(Struct, frozen=True, kw_only=True):
    """How the job gets a knob's value."""

    kind: str = HOOK
    template: str = ""
    """Words with {} for the value; without {} they are a switch, there when the value is true."""
    variable: str = ""


class Knob(Struct, frozen=True, kw_only=True):
    """One knob: a range of numbers, or a list of values."""

    name: str
    way: Way
    choices: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float | None = None
    is_log: bool = False
    is_whole: bool = True
    usual: Value | None = None
    """What the job has when it says nothing; None where that is not known."""

    @property
    def values(self) -> tuple[Value, ...] | None:
        """Every value it may have; None for a continuous range."""
        if self.choices:
            return self.choices
        if self.low is None or self.high is None or (not self.is_whole and self.step is None):
            return None
        step_interval = self.step or 1
        num = int((self.high - self.low) / step_interval + 1e-9) + 1
        if num > MAX_VALUES:
            return None
        return tuple(
            int(self.low + i * step_interval) if self.is_whole else self.low + i * step_interval
            for i in range(num)
        )

    @property
    def is_ordered(self) -> bool:
        """Whether its values lie on a line."""
        return not self.choices or all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in self.choices
        )

    @property
    def words(self) -> str:
        """The range, as it may be given."""
        if self.choices:
            return ",".join(shown(value) for value in self.choices)
        assert self.low is not None and self.high is not None
        step = "" if self.step in (None, 1) else f":step={shown(self.step or 1)}"
        log = ":log" if self.is_log else ""
        return f"{self._number(self.low)}..{self._number(self.high)}{log}{step}"

    def _number(self, value: float) -> str:
        return str(int(value)) if self.is_whole else repr(float(value))

    def nearest(self, value: Value) -> Value | None:
        """The value of this knob that comes closest; None for a word that is not among them."""
        if value in self.choices:
            return self.choices[self.choices.index(value)]
        if not self.is_ordered or isinstance(value, str) or not math.isfinite(value):
            return None
        values = self.values
        if values is not None:
            return min(values, key=lambda other: abs(float(other) - float(value)))
        assert self.low is not None and self.high is not None
        inside = min(max(float(value), self.low), self.high)
        return round(inside) if self.is_whole else inside

    def first(self) -> Value:
        """Where a search begins that has nothing better to go by: what the job has anyhow, or the
        first value."""
        near = None if self.usual is None else self.nearest(self.usual)
        if near is not None:
            return near
        if self.choices:
            return self.choices[0]
        assert self.low is not None
        return int(self.low) if self.is_whole else self.low


Settings = Mapping[str, Value]


class Pinned(Struct, frozen=True, kw_only=True):
    """A knob that is not searched: it is what makes its product with another one come out."""

    knob: Knob
    by: str
    total: int


class Space(Struct, frozen=True, kw_only=True):
    knobs: tuple[Knob, ...]
    pinned: Pinned | None = None

    @property
    def size(self) -> int | None:
        """Different settings; None where a knob is continuous."""
        sizes = [None if knob.values is None else len(knob.values) for knob in self.knobs]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def completed(self, settings: Settings) -> dict[str, Value]:
        """The setting with the pinned knob's value in it."""
        if self.pinned is None:
            return dict(settings)
        size = settings[self.pinned.by]
        assert isinstance(size, int) and self.pinned.total % size == 0
        return {**settings, self.pinned.knob.name: self.pinned.total // size}

    def cells(self) -> Iterator[dict[str, Value]]:
        """Every setting of a space that can be counted."""
        names = [knob.name for knob in self.knobs]
        for row in itertools.product(*(knob.values or () for knob in self.knobs)):
            yield self.completed(dict(zip(names, row, strict=True)))

    def filled(self, some: Settings) -> dict[str, Value] | None:
        """A whole setting from a few of its values, each brought into its knob's range; None when
        none of them is ours."""
        near = {
            knob.name: knob.nearest(some[knob.name]) for knob in self.knobs if knob.name in some
        }
        if not any(value is not None for value in near.values()):
            return None
        return self.completed(
            {
                knob.name: knob.first() if (v := near.get(knob.name)) is None else v
                for knob in self.knobs
            }
        )

    def change(self, settings: Settings) -> Change:
        """How a trial with these settings differs from the command as it was given."""
        return change_of(
            (*self.knobs, *([] if self.pinned is None else [self.pinned.knob])), settings
        )

    def distance(self, a: Settings, b: Settings) -> float:
        """How far two settings are apart: each knob counts up to 1."""
        return sum(_apart(knob, a[knob.name], b[knob.name]) for knob in self.knobs)


def _apart(knob: Knob, a: Value, b: Value) -> float:
    if a == b:
        return 0.0
    values = knob.values
    if (
        not knob.is_ordered
        or values is None
        or len(values) < 3
        or isinstance(a, str)
        or isinstance(b, str)
    ):
        return 1.0
    if knob.is_log:
        return abs(math.log(a / b)) / math.log(float(values[-1]) / float(values[0]))
    order = sorted(values, key=float)
    return abs(order.index(a) - order.index(b)) / (len(order) - 1)


def change_of(knobs: Sequence[Knob], settings: Settings) -> Change:
    """Each setting on its way into the job."""
    hooks: dict[str, Value] = {}
    environment: dict[str, str] = {}
    arguments: list[str] = []
    for knob in knobs:
        if knob.name not in settings:
            continue
        value, way = settings[knob.name], knob.way
        if way.kind == HOOK:
            hooks[knob.name] = value
        elif way.kind == ENVIRONMENT:
            environment[way.variable] = way.template.replace("{}", _plain(value))
        elif "{}" in way.template:
            arguments += [word.replace("{}", _plain(value)) for word in shlex.split(way.template)]
        elif value:
            arguments += shlex.split(way.template)
    return Change(knobs=hooks, environment=environment, arguments=tuple(arguments))


def shown(value: Value) -> str:
    """A value as it is given on the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(value: Value) -> str:
    """A value as a script gets it. A float is written so that it is read back the same."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return repr(value) if isinstance(value, float) else str(value)


def parse_ways(texts: Sequence[str]) -> dict[str, Way]:
    """`--as NAME=--option={}`, `--as NAME=env:VARIABLE`."""
    ways: dict[str, Way] = {}
    for text in texts:
        name, equals, template = text.partition("=")
        if not (equals and template.strip() and _NAME.fullmatch(name)):
            raise UsageError(
                f'--as {text}: say how a knob is given, such as --as chunk="--loss-chunks={{}}" '
                "or --as OMP=env:OMP_NUM_THREADS"
            )
        if name in ways:
            raise UsageError(f"--as {name} is given twice: a knob reaches the script in one way")
        ways[name] = _way(name, template)
    return ways


def _way(name: str, template: str) -> Way:
    if template.startswith("env:"):
        variable, _, value = template[4:].partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", variable):
            raise UsageError(
                f"--as {name}={template}: {variable!r} is no name of an environment variable"
            )
        return Way(kind=ENVIRONMENT, variable=variable, template=value or "{}")
    try:
        words = shlex.split(template)
    except ValueError as problem:
        raise UsageError(f"--as {name}={template}: {problem}") from None
    if not words:
        raise UsageError(f"--as {name}={template}: there are no words in it")
    return Way(kind=ARGUMENT, template=template)


def parse_knobs(texts: Sequence[str], ways: Mapping[str, Way]) -> tuple[Knob, ...]:
    """The knobs that a command line names; UsageError says what is wrong with one, and what was
    likely meant."""
    knobs: dict[str, Knob] = {}
    for text in texts:
        name, equals, range_ = text.partition("=")
        name = name.strip()
        if not (equals and range_.strip() and _NAME.fullmatch(name)):
            raise UsageError(
                f"--knob {text}: give a name and its values, such as --knob num_workers=0..8. "
                f"{FORMS}"
            )
        if name in knobs:
            raise UsageError(f"--knob {name} is given twice: put all its values into one")
        knobs[name] = _knob(name, range_.strip(), ways.get(name))
    stray = [name for name in ways if name not in knobs]
    if stray:
        raise UsageError(
            f"--as {stray[0]}=...: no knob has that name. Give its values too: --knob "
            f"{stray[0]}=1..8"
        )
    return tuple(knobs.values())


def _knob(name: str, text: str, way: Way | None) -> Knob:
    from stepscope.experiments.fix_values import own_cores
    from stepscope.protocol.settings import SETTINGS

    setting = SETTINGS.get(name)
    if setting is None and way is None:
        near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.6)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"--knob {name}: that is not a setting that stepscope can set inside a job. {meant}"
            f'If the script takes it, say how: --as {name}="--{name.replace("_", "-")}={{}}", or '
            f"--as {name}=env:VARIABLE. It can set: {', '.join(SETTINGS)}"
        )
    setting = None if way is not None else setting
    match = _RANGE.fullmatch(text)
    if match is None and ".." not in text:
        fields: dict[str, Any] = {"choices": _listed(name, text, setting)}
    else:
        fields = _ranged(name, text, match, setting)
    usual = None
    if setting is not None:
        usual = own_cores() if name == "num_threads" else setting.usual
    return Knob(name=name, way=way or Way(), usual=usual, **fields)


def _ranged(name: str, text: str, match: re.Match[str] | None, setting: Any) -> dict[str, Any]:
    if match is None:
        raise UsageError(f"--knob {name}={text}: {_meant(name, text)}{FORMS}")
    low, high, is_log, step = float(match[1]), float(match[2]), False, None
    for mark in match[3].split(":")[1:]:
        if mark == "log":
            is_log = True
        elif mark.startswith("step=") and re.fullmatch(_NUMBER, mark[5:]) and float(mark[5:]) > 0:
            step = float(mark[5:])
        else:
            raise UsageError(
                f"--knob {name}={text}: {mark!r} is not known after a range; there are :log and "
                ":step=k"
            )
    is_whole = not any(
        mark in part
        for part in (match[1], match[2], str(step)[:-2] if step else "")
        for mark in ".eE"
    )
    if setting is not None:
        is_whole = setting.kind == "int" or (setting.kind == "float" and is_whole and not is_log)
        if setting.kind not in ("int", "float"):
            raise UsageError(
                f"--knob {name}={text}: {name} has no range. It may be: {setting.values}"
            )
        _within(name, text, low, high, setting)
    if low > high:
        raise UsageError(
            f"--knob {name}={text}: the first number is the larger. Did you mean "
            f"{name}={match[2]}..{match[1]}{match[3]}?"
        )
    if is_log and low <= 0:
        least = "1" if is_whole else "0.001"
        raise UsageError(
            f"--knob {name}={text}: a range with :log starts above 0. Did you mean "
            f"{name}={least}..{match[2]}:log?"
        )
    if is_log and step is not None:
        raise UsageError(
            f"--knob {name}={text}: :log and :step do not go together. Give a list instead: "
            f"{name}=1,2,4,8"
        )
    if is_whole and not all(number == int(number) for number in (low, high, step or 1)):
        raise UsageError(f"--knob {name}={text}: {name} is a whole number")
    return {"low": low, "high": high, "step": step, "is_log": is_log, "is_whole": is_whole}


def _within(name: str, text: str, low: float, high: float, setting: Any) -> None:
    if (
        setting.low is not None
        and setting.high is not None
        and not (setting.low <= min(low, high) and max(low, high) <= setting.high)
    ):
        raise UsageError(f"--knob {name}={text}: {name} may be from {setting.values}")


def _listed(name: str, text: str, setting: Any) -> tuple[Value, ...]:
    words = [word.strip() for word in (text.split(",") if text != "on/off" else ["on", "off"])]
    if (len(words) == 1 or text[0] in "[(") and (near := _NEAR_RANGE.fullmatch(text)) and near[1]:
        raise UsageError(f"--knob {name}={text}: {_meant(name, text)}{FORMS}")
    if any(not word for word in words):
        raise UsageError(f"--knob {name}={text}: a value is missing. {FORMS}")
    values = [_value(name, word, setting) for word in words]
    if len(set(map(_kind_and_value, values))) < len(values):
        raise UsageError(f"--knob {name}={text}: a value is given twice")
    return tuple(values)


def _kind_and_value(value: Value) -> tuple[bool, Value]:
    """True and 1 are two values."""
    return isinstance(value, bool), value


def _value(name: str, word: str, setting: Any) -> Value:
    if setting is not None:
        from stepscope.protocol.settings import value_of

        try:
            return value_of(name, word)
        except ValueError as problem:
            near = difflib.get_close_matches(word, setting.choices, n=1, cutoff=0.5)
            raise UsageError(
                f"--knob {name}={word}: {problem}" + (f". Did you mean {near[0]}?" if near else "")
            ) from None
    if word.lower() in _SWITCH:
        return _SWITCH[word.lower()]
    if re.fullmatch(r"[-+]?\d+", word):
        return int(word)
    return float(word) if re.fullmatch(_NUMBER, word) else word


def _meant(name: str, text: str) -> str:
    """The nearest form that can be read, as a question."""
    near = _NEAR_RANGE.fullmatch(text)
    if near is None or not near[1]:
        return "that is neither a range nor a list. "
    log = ":log" if "log" in near[3] else ""
    return f"that is neither a range nor a list. Did you mean {name}={near[1]}..{near[2]}{log}? "
