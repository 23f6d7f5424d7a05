"""Pickles that hold plain containers alone, without the standard library's loader: that one runs
whatever code a file names.

A pickle is a program for a small machine with a stack. Here the machine can make dict, list, tuple,
set, str, bytes, int, float, bool and None. Everything that would import a name, call it or ask for
an object from outside is refused by its name and position, before anything else is done with the
file. There is no recursion: a file may nest as deep as it likes.
"""

from __future__ import annotations

import pickletools
import struct
from struct import Struct
from typing import Any

from stepscope.errors import FormatError

MAX_CONTAINERS = 12_000_000
"""Dicts, and everything else, each. A snapshot of a gigabyte has seven million; an empty one is a
byte there and 64 here."""
MAX_INT_BYTES = 16
"""Addresses and sizes have eight."""
MAX_KEY_INT = 1 << 31
"""Larger whole numbers as keys can be chosen so that a dict of them takes forever."""
MAX_FIELDS = 1 << 20
"""Fields in one dict; a snapshot's have ten."""
PROTOCOLS = range(2, 6)
CODES: dict[int, str] = {ord(code.code): code.name for code in pickletools.opcodes}
REFUSED = {
    ord(code.code)
    for code in pickletools.opcodes
    if code.name
    in {
        *(
            "GLOBAL",
            "STACK_GLOBAL",
            "REDUCE",
            "BUILD",
            "INST",
            "OBJ",
            "NEWOBJ",
            "NEWOBJ_EX",
            "EXT1",
            "EXT2",
            "EXT4",
        ),
        *("PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER", "BYTEARRAY8"),
    }
}
"""What makes a file more than data."""
WORD = Struct("<I")
HALF = Struct("<H")
SIGNED = Struct("<i")
LONG = Struct("<Q")
DOUBLE = Struct(">d")


class PickleContentError(FormatError):
    """What is wrong, and at which byte."""


def load_plain(data: bytes, label: str, what: str = "a memory snapshot") -> Any:
    """The value that the pickle holds. Raises FormatError for what is damaged, and for what is more
    than data; `what` it should be."""
    if len(data) < 2 or data[0] != 0x80 or data[1] not in PROTOCOLS:
        raise FormatError(
            f"{label}: it does not begin like a pickle of protocol {PROTOCOLS[0]} to "
            f"{PROTOCOLS[-1]}; {what} does"
        )
    machine = _Machine(data, what)
    try:
        return machine.run()
    except PickleContentError as problem:
        raise FormatError(f"{label}: {problem}") from None
    except (IndexError, struct.error):
        raise FormatError(
            f"{label}: the pickle is damaged or cut off, near byte {machine.pos} of {len(data)}"
        ) from None
    except UnicodeDecodeError:
        raise FormatError(
            f"{label}: the pickle is damaged: a text near byte {machine.pos} is not UTF-8"
        ) from None


class _Machine:
    """The stack machine. Its loop is one long function: a call for each of millions of codes would
    cost more than the work."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.what = what
        self.pos = 2
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.left = MAX_CONTAINERS

    def run(self) -> Any:
        """The common codes here, in the order of how often a snapshot has them; the others in
        `_rare`."""
        data, stack, marks, memo = self.data, self.stack, self.marks, self.memo
        push, keep, word, size = stack.append, memo.append, WORD.unpack_from, len(self.data)
        pos = code_pos = self.pos
        left = MAX_CONTAINERS
        try:
            while pos < size:
                code_pos = pos
                code = data[pos]
                pos += 1
                if code == 0x68:  # BINGET
                    push(memo[data[pos]])
                    pos += 1
                elif code == 0x8C:  # SHORT_BINUNICODE, which a MEMOIZE mostly follows
                    end = pos + 1 + data[pos]
                    value = data[pos + 1 : end].decode("utf-8", "surrogatepass")
                    push(value)
                    pos = end
                    if data[pos] == 0x94:
                        keep(value)
                        pos += 1
                elif code == 0x7D:  # EMPTY_DICT, mostly kept and filled at once: MEMOIZE, MARK
                    fields: dict[Any, Any] = {}
                    push(fields)
                    left -= 1
                    if left < 0:
                        raise _too_many()
                    if data[pos] == 0x94 and data[pos + 1] == 0x28:
                        keep(fields)
                        marks.append(len(stack))
                        pos += 2
                elif code == 0x94:  # MEMOIZE
                    keep(stack[-1])
                elif code == 0x28:  # MARK
                    marks.append(len(stack))
                elif code == 0x75:  # SETITEMS
                    start = marks.pop()
                    _set_items(stack[start - 1], stack[start:], code_pos)
                    del stack[start:]
                elif code == 0x4B:  # BININT1
                    push(data[pos])
                    pos += 1
                elif code == 0x6A:  # LONG_BINGET
                    push(memo[word(data, pos)[0]])
                    pos += 4
                elif code == 0x58:  # BINUNICODE
                    end = pos + 4 + word(data, pos)[0]
                    push(data[pos + 4 : end].decode("utf-8", "surrogatepass"))
                    pos = end
                elif code == 0x71 and data[pos] == len(memo):  # BINPUT, of torch's own pickler
                    keep(stack[-1])
                    pos += 1
                elif code == 0x72 and word(data, pos)[0] == len(memo):  # LONG_BINPUT
                    keep(stack[-1])
                    pos += 4
                elif code == 0x65:  # APPENDS
                    start = marks.pop()
                    _list(stack[start - 1], code_pos).extend(stack[start:])
                    del stack[start:]
                elif code == 0x2E:  # STOP
                    return self._result(code_pos)
                else:
                    self.pos = code_pos
                    pos = self._rare(code, pos)
        finally:
            self.pos = code_pos
        raise IndexError

    def _result(self, code_pos: int) -> Any:
        if len(self.stack) != 1 or self.marks:
            raise PickleContentError(
                f"it ends with {len(self.stack)} values where one belongs, at byte {code_pos}"
            )
        return self.stack[0]

    def _rare(self, code: int, pos: int) -> int:
        """One code that is not frequent; gives where the next one stands."""
        data, stack = self.data, self.stack
        if code in REFUSED:
            raise PickleContentError(
                f"refused at byte {self.pos}: the code {CODES[code]} can run a program, and "
                f"{self.what} needs none. "
                f"The file is not plainly {self.what}, and nothing in it was run"
            )
        if code == 0x5D:  # EMPTY_LIST
            stack.append([])
            self._spend()
            return pos
        if code == 0x95:  # FRAME: how the bytes were buffered.
            LONG.unpack_from(data, pos)
            return pos + 8
        if code in (0x4A, 0x4D, 0x47):  # BININT, BININT2, BINFLOAT
            kind = {0x4A: SIGNED, 0x4D: HALF, 0x47: DOUBLE}[code]
            stack.append(kind.unpack_from(data, pos)[0])
            return pos + kind.size
        if code in (0x8A, 0x8B):  # LONG1, LONG4
            width = data[pos] if code == 0x8A else WORD.unpack_from(data, pos)[0]
            pos += 1 if code == 0x8A else 4
            if width > MAX_INT_BYTES:
                raise PickleContentError(
                    f"a whole number of {width} bytes at byte {self.pos}: no size or address is "
                    "that large"
                )
            stack.append(int.from_bytes(self._bytes(pos, width), "little", signed=True))
            return pos + width
        if code in SIMPLE:
            stack.append(SIMPLE[code])
            return pos
        if code in TUPLES:
            return self._tuple(code, pos)
        if code in SIZED:
            return self._sized(code, pos)
        return self._other(code, pos)

    def _tuple(self, code: int, pos: int) -> int:
        stack = self.stack
        count = TUPLES[code]
        start = self.marks.pop() if count is None else len(stack) - count
        if start < 0:
            raise IndexError
        stack[start:] = [tuple(stack[start:])]
        self._spend()
        return pos

    def _sized(self, code: int, pos: int) -> int:
        """Texts and bytes with their length before them."""
        kind, is_text = SIZED[code]
        width = self.data[pos] if kind is None else kind.unpack_from(self.data, pos)[0]
        pos += 1 if kind is None else kind.size
        value = self._bytes(pos, width)
        self.stack.append(value.decode("utf-8", "surrogatepass") if is_text else value)
        return pos + width

    def _other(self, code: int, pos: int) -> int:
        """The memo by number, single items, sets, and what takes values away again."""
        data, stack, memo, marks = self.data, self.stack, self.memo, self.marks
        if code in (0x71, 0x72):  # BINPUT, LONG_BINPUT
            index = data[pos] if code == 0x71 else WORD.unpack_from(data, pos)[0]
            if index > len(memo):
                raise PickleContentError(
                    f"damaged at byte {self.pos}: it keeps value {index:,} after {len(memo):,}"
                )
            memo[index : index + 1] = [stack[-1]]
            return pos + (1 if code == 0x71 else 4)
        if code == 0x61:  # APPEND
            value = stack.pop()
            _list(stack[-1], self.pos).append(value)
        elif code == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            _set_items(stack[-1], [key, value], self.pos)
        elif code == 0x8F:  # EMPTY_SET
            stack.append(set())
            self._spend()
        elif code in (0x90, 0x91):  # ADDITEMS, FROZENSET
            start = marks.pop()
            items = stack[start:]
            for item in items:
                _check_key(item, self.pos)
            del stack[start:]
            if code == 0x91:
                stack.append(frozenset(items))
                self._spend()
            elif type(stack[-1]) is set:
                stack[-1].update(items)
            else:
                raise PickleContentError(
                    f"damaged at byte {self.pos}: items for a set that is none"
                )
        elif code == 0x30:  # POP
            stack.pop()
        elif code == 0x31:  # POP_MARK
            del stack[marks.pop() :]
        else:
            name = CODES.get(code)
            what = (
                f"the code {name}, which plain data do not use"
                if name
                else f"{code:#04x}, which is no code"
            )
            raise PickleContentError(f"byte {self.pos} of the pickle is {what}")
        return pos

    def _bytes(self, pos: int, width: int) -> bytes:
        if width > len(self.data) - pos:
            raise PickleContentError(
                f"cut off: {width:,} bytes were announced at byte {self.pos} of {len(self.data):,}"
            )
        return self.data[pos : pos + width]

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _too_many()


SIMPLE: dict[int, Any] = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}
TUPLES: dict[int, int | None] = {0x85: 1, 0x86: 2, 0x87: 3, 0x74: None}
SIZED: dict[int, tuple[Struct | None, bool]] = {
    0x8D: (LONG, True),  # BINUNICODE8
    0x43: (None, False),  # SHORT_BINBYTES
    0x42: (WORD, False),  # BINBYTES
    0x8E: (LONG, False),  # BINBYTES8
}


def _too_many() -> PickleContentError:
    return PickleContentError(
        f"it has more than {MAX_CONTAINERS:,} containers; record fewer events (max_entries=)"
    )


def _list(value: Any, pos: int) -> list[Any]:
    if type(value) is not list:
        raise PickleContentError(f"damaged at byte {pos}: items for a list that is none")
    return value


def _set_items(target: Any, items: list[Any], pos: int) -> None:
    if type(target) is not dict or len(items) % 2:
        raise PickleContentError(
            f"damaged at byte {pos}: fields for a dict that is none, or a name without a value"
        )
    if len(items) > MAX_FIELDS:
        raise PickleContentError(
            f"a dict of {len(items) // 2:,} fields at byte {pos}: no recording has one"
        )
    keys = items[::2]
    for key in keys:
        if type(key) is not str:
            _check_key(key, pos)
    target.update(zip(keys, items[1::2], strict=True))


def _check_key(key: Any, pos: int) -> None:
    """Only what hashes fast and without a deep descent: a tuple in a tuple in a tuple would end the
    process."""
    if (
        key is None
        or type(key) in (str, bytes, bool, float)
        or (type(key) is int and abs(key) < MAX_KEY_INT)
    ):
        return
    raise PickleContentError(
        f"a {type(key).__name__} stands as a key at byte {pos}: a recording's keys are words"
    )
