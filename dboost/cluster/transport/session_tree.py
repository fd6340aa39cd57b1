"""The tree of sessions on which the calls of a fit travel.

Beyond `dboost.fan-in` sessions, lines lead to some of them only. Each of these passes a call on to others, and answers for all
of them (`relay`), so no process receives answers from more than that many others. A `Branch` is a session with those below it.

A request that is to be passed on has these buffers: the sessions below, whether it *follows* a call that is still under way,
and the arguments of each session below if sessions have arguments of their own. Answers have the same form on every level.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from dboost.cluster.transport.line import Message
from dboost.cluster.transport.messages import SessionRef, pack_round, unpack


class Branch(NamedTuple):
    """A session, and those whose answers it collects. passed_on : the latter as sent to it, empty if there are none."""

    ref: SessionRef
    below: tuple[SessionRef, ...] = ()
    passed_on: bytes = b""

    def __hash__(self) -> int:
        return hash(self.ref)  # not of hundreds of sessions below


@lru_cache(maxsize=64)
def tree_of(refs: tuple[SessionRef, ...], fan_in: int) -> tuple[Branch, ...]:
    """Return at most `fan_in` branches with all of these sessions, each of which has branches in the same way.

    Sessions of one host are neighbours in the tree if their addresses are.
    """
    n_groups = min(fan_in, len(refs))
    bounds = [len(refs) * k // n_groups for k in range(n_groups + 1)] if refs else []
    groups = [(refs[a], refs[a + 1 : b]) for a, b in itertools.pairwise(bounds)]
    return tuple(Branch(first, rest, pack_round((rest, fan_in)) if rest else b"") for first, rest in groups)


#: Packed arguments for the sessions of a branch: for all of them, or for each, those of its own session first.
Arguments = Sequence[bytes | memoryview]
#: The second buffer of a request that is passed on: whether it follows a call that is still under way.
_FOLLOWS, _FOLLOWS_NONE = memoryview(b"follows"), memoryview(b"")


def buffers_of(branch: Branch, follows: bool, below: Arguments = ()) -> list[memoryview]:
    """Return the buffers of a request: none if it is not to be passed on. below : arguments of each session below."""
    if not branch.below:
        return []
    return [memoryview(branch.passed_on), _FOLLOWS if follows else _FOLLOWS_NONE, *(memoryview(packed) for packed in below)]


def for_all(branches: Iterable[Branch], packed: bytes | memoryview) -> dict[Branch, Arguments]:
    """Return packed arguments that all sessions of branches share."""
    return dict.fromkeys(branches, (packed,))


def for_each(branches: Iterable[Branch], arguments: Arguments) -> dict[Branch, Arguments]:
    """Divide arguments of each session among branches. arguments : in the order in which `tree_of` got the sessions."""
    left = iter(arguments)
    return {branch: [*itertools.islice(left, 1 + len(branch.below))] for branch in branches}


def refs_of(branches: Iterable[Branch]) -> list[SessionRef]:
    return [ref for branch in branches for ref in (branch.ref, *branch.below)]


def follows(message: Message) -> bool:
    """Whether a request follows a call that is still under way."""
    return len(message.buffers) > 1 and len(message.buffers[1]) > 0


def answers_of(ref: SessionRef, message: Message, branches: Sequence[Branch]) -> dict[SessionRef, bytes]:
    """Return the packed answers that a branch has sent, by session."""
    is_relay = any(branch.ref == ref and branch.below for branch in branches)
    return unpack(message.content) if is_relay else {ref: bytes(message.content)}
