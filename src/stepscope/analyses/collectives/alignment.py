"""Aligns one list of collectives with another of the same kinds:
in order, near in time, with gaps on both sides."""

from __future__ import annotations

import numpy as np

from stepscope.core.trace import NONE, Bool, Int64

FAR_GAIN = 0.3
"""What a pair beyond `near` counts that order alone makes one: less than two ends that meet."""
EVEN = 0.95
"""Share of kinds and steps with equally many on two ranks from which on nothing was lost."""
DENSE = 4
"""Ends that stray by more than this part of the
distance between collectives do not distinguish them."""
MAX_NS = 20_000_000
"""Ends of one collective lie no further apart, whatever was measured."""
STRAY, MEET, LONE = 4, 2, 6
"""Times the usual distance of ends, from which on one strays, and up to which two meet; and from
which on a pair made by order alone may as well be two collectives, each lost on the other side."""
MIN_NS, SPARSE = 200_000, 10
"""But not where they are nearer than this,
or than this part of the distance to the next of their kind."""


def align_lists(
    time: Int64,
    token: Int64,
    near: Int64,
    list_ns: Int64,
    list_token: Int64,
    ordinal: Int64,
    list_ordinal: Int64,
    firm: Int64,
) -> Int64:
    """Position of each entry in a list of the same kinds sorted by time, in order and within
    `near`; else NONE.

    Of several orders that fit, one in which `ordinal` and `list_ordinal` agree is preferred, where
    both are known; those that agree may lie further apart.
    """
    position = np.full(len(time), NONE, np.int64)
    wide = np.where(ordinal != NONE, np.maximum(near, MAX_NS), near)
    low = np.searchsorted(list_ns, time - wide, "left")
    high = np.searchsorted(list_ns, time + wide, "right")
    count = high - low
    of = np.repeat(np.arange(len(time)), count)
    to = np.repeat(low - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    agree = (ordinal[of] == list_ordinal[to]) & (ordinal[of] != NONE)
    distance = np.abs(time[of] - list_ns[to])
    pairs = np.flatnonzero(agree & (token[of] == list_token[to]))
    agree[pairs[_slipped(time[of[pairs]], to[pairs], list_ns, list_token)]] = False
    same = (token[of] == list_token[to]) & (agree | (distance <= near[of]))
    of, to, distance, agree = of[same], to[same], distance[same], agree[same]
    if not len(of):
        return position
    if bool((np.diff(of) > 0).all() and (np.diff(to) > 0).all()):
        chain = np.arange(len(of))
    else:
        gain = np.where(distance <= near[of], 1.0 - distance / (near[of] + 1) + agree, FAR_GAIN)
        chain = _heaviest_chain(of.tolist(), to.tolist(), gain.tolist(), len(list_ns))
        if _is_dense(distance[chain], list_ns, list_token):
            chain = chain[agree[chain]]
    lone = _is_lone(distance[chain], to[chain], list_ns, list_token, DENSE)
    chain = chain[agree[chain] | (firm[of[chain]] != 1) | ~lone]
    position[of[chain]] = to[chain]
    return position


def _slipped(time: Int64, to: Int64, list_ns: Int64, list_token: Int64) -> Bool:
    """Mask of the pairs made by counting that counting gets wrong: where each list has lost another
    one, equally many are left.

    list    a b c d   f
    times   a   c d e f

    Counted through, c goes with b, d with c and e with d. Those in a row stray, and meet the next
    one of their kind instead (or the one before); e, which has no partner, strays next to them.
    Where the two losses are neighbours, one pair strays alone: far enough, it is none.
    """
    slipped: Bool = np.zeros(len(to), np.bool_)
    distance = np.abs(time - list_ns[to])
    usual = float(np.median(distance)) if len(distance) else 0.0
    strays = distance > STRAY * usual
    if not strays.any():
        return slipped
    neighbour = _neighbours(list_ns, list_token)
    slipped = _is_lone(distance, to, list_ns, list_token, SPARSE)
    in_kind = np.lexsort((list_ns[to], list_token[to]))
    follows = np.diff(list_token[to][in_kind]) == 0
    for other in neighbour[:, to]:
        meets = strays & (other != NONE) & (np.abs(time - list_ns[other]) <= MEET * usual)
        both = meets[in_kind][1:] & meets[in_kind][:-1] & follows
        slipped[in_kind[1:][both]] = slipped[in_kind[:-1][both]] = True
    # Strays next to them belong to them.
    after, before = in_kind[1:][follows], in_kind[:-1][follows]
    seen = slipped.copy()
    slipped[after] |= strays[after] & seen[before]
    slipped[before] |= strays[before] & seen[after]
    return slipped


def _neighbours(list_ns: Int64, list_token: Int64) -> Int64:
    """Index of the next of its kind and of the one before, for each in the list; NONE where there
    is none."""
    order = np.lexsort((list_ns, list_token))
    neighbour = np.full((2, len(list_ns)), NONE, np.int64)
    alike = np.diff(list_token[order]) == 0
    neighbour[0, order[:-1][alike]] = order[1:][alike]
    neighbour[1, order[1:][alike]] = order[:-1][alike]
    return neighbour


def _is_lone(distance: Int64, to: Int64, list_ns: Int64, list_token: Int64, part: int) -> Bool:
    """Mask of the pairs that may as well be two collectives: far apart beside the others, and by
    more than this part of the distance to the next of their kind."""
    usual = float(np.median(distance)) if len(distance) else 0.0
    neighbour = _neighbours(list_ns, list_token)[:, to]
    gaps = np.where(neighbour != NONE, np.abs(list_ns[neighbour] - list_ns[to]), MAX_NS)
    limit = np.maximum(gaps.min(axis=0) // part, max(LONE * usual, MIN_NS))
    lone: Bool = distance > limit
    return lone


def _is_dense(distance: Int64, list_ns: Int64, list_token: Int64) -> bool:
    """Whether collectives of a kind follow so closely
    that the noise of their ends hides which is which."""
    order = np.lexsort((list_ns, list_token))
    gaps = np.diff(list_ns[order])[np.diff(list_token[order]) == 0]
    return (
        len(gaps) > 0
        and len(distance) > 0
        and float(np.median(distance)) * DENSE > float(np.median(gaps))
    )


def ordinals(
    token: Int64, number: Int64, list_token: Int64, list_number: Int64
) -> tuple[Int64, Int64]:
    """Number of each entry of both lists among those of its kind and step, in one numbering; NONE
    where the lists hold unequally many.

    Where many are unequal, events were lost,
    and equal numbers may have lost different ones: then all are NONE.

    token   number                                    ordinal
    a       7            list: a 7, a 7, b 7          0       list: 0, 1, NONE
    a       7                                         1
    b       7                                         NONE    (two against one)
    b       7                                         NONE
    """
    both = np.stack((np.concatenate((token, list_token)), np.concatenate((number, list_number))))
    _, which = np.unique(both, axis=1, return_inverse=True)
    which = which.reshape(-1).astype(np.int64)
    cut = len(token)
    size = int(which.max()) + 1 if len(which) else 0
    mine = np.bincount(which[:cut], minlength=size)
    theirs = np.bincount(which[cut:], minlength=size)
    first = np.cumsum(np.maximum(mine, theirs)) - np.maximum(mine, theirs)
    even = mine == theirs
    usable = even[which] & (both[1] != NONE)
    counted = np.zeros(size, np.bool_)
    counted[which[both[1] != NONE]] = True
    # A step that one rank alone recorded is no loss.
    counted &= (mine > 0) & (theirs > 0)
    if not counted.any() or float(even[counted].mean()) < EVEN:
        usable[:] = False
    ordinal = np.where(
        usable, first[which] + np.concatenate((nth(which[:cut]), nth(which[cut:]))), NONE
    )
    return ordinal[:cut], ordinal[cut:]


def nth(key: Int64) -> Int64:
    """How many of the same key stand before each."""
    order = np.argsort(key, kind="stable")
    fresh = np.ones(len(key), np.bool_)
    fresh[1:] = np.diff(key[order]) != 0
    position = np.arange(len(key))
    result = np.empty(len(key), np.int64)
    result[order] = position - np.maximum.accumulate(np.where(fresh, position, 0))
    return result


def fill_gaps(
    position: Int64, time: Int64, token: Int64, firm: Int64, list_ns: Int64, list_token: Int64
) -> Int64:
    """Positions also for entries between the same neighbours
    in both lists and of equal kinds one by one.

    Their ends are late or early; nothing was lost.
    """
    position = position.copy()
    matched = np.flatnonzero(position != NONE)
    if not len(matched) or len(matched) == len(position):
        return position
    usual = float(np.median(np.abs(time[matched] - list_ns[position[matched]])))
    least = max(LONE * usual, MIN_NS)
    for low, high in zip([-1, *matched.tolist()], [*matched.tolist(), len(position)], strict=True):
        if high - low < 2:
            continue
        first = position[low] + 1 if low >= 0 else 0
        stop = position[high] if high < len(position) else len(list_ns)
        mine, theirs = _between(low, high, int(first), int(stop), len(position))
        if (
            not len(mine)
            or len(mine) != len(theirs)
            or bool((token[mine] != list_token[theirs]).any())
        ):
            continue
        if low >= 0 and high < len(position):
            span = np.full(len(mine), list_ns[stop] - list_ns[first - 1])
        else:
            span = 2 * np.abs(list_ns[theirs] - list_ns[stop if low < 0 else first - 1])
        # The span is of two gaps, and more where several stray.
        limit = np.minimum(
            np.minimum(span // 5, MAX_NS // 2), np.maximum(least, span // (2 * SPARSE))
        )
        near: Bool = np.abs(time[mine] - list_ns[theirs]) <= np.where(firm[mine] == 1, limit, span)
        position[mine[near]] = theirs[near]
    return position


def _between(low: int, high: int, first: int, stop: int, size: int) -> tuple[Int64, Int64]:
    """Entries between two that have a position, and what the list has between these positions."""
    mine, theirs = np.arange(low + 1, high), np.arange(first, stop)
    if low >= 0 and high < size:
        return mine, theirs
    # Recordings begin and end apart: count from the neighbour that both have.
    num = min(len(mine), len(theirs))
    if low < 0:
        return mine[len(mine) - num :], theirs[len(theirs) - num :]
    return mine[:num], theirs[:num]


def _heaviest_chain(of: list[int], to: list[int], gain: list[float], size: int) -> Int64:
    """The pairs, rising on both sides, with the greatest sum of gains;
    a prefix-maximum tree keeps it n log n."""
    tree_value, tree_pair = [0.0] * (size + 1), [-1] * (size + 1)
    before, total = [-1] * len(of), [0.0] * len(of)
    best, begin = -1, 0
    while begin < len(of):
        end = begin
        while end < len(of) and of[end] == of[begin]:
            node, value, pair = to[end], 0.0, -1
            while node > 0:
                if tree_value[node] > value:
                    value, pair = tree_value[node], tree_pair[node]
                node &= node - 1
            total[end], before[end] = value + gain[end], pair
            end += 1
        for pair in range(begin, end):
            if best < 0 or total[pair] > total[best]:
                best = pair
            node = to[pair] + 1
            while node <= size:
                if tree_value[node] < total[pair]:
                    tree_value[node], tree_pair[node] = total[pair], pair
                node += node & -node
        begin = end
    chain = []
    while best >= 0:
        chain.append(best)
        best = before[best]
    return np.array(chain[::-1], np.int64)
