"""Which parameters were registered, reached, disconnected or unused, and telling so once by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unigrad import names
from unigrad.errors import ArgumentError, UnusedParameterError, UnusedParameterWarning

if TYPE_CHECKING:
    from unigrad.block import Block

__all__ = ["Usage", "judge", "sort"]

POLICIES = ("warn", "error", "ignore")


@dataclass(frozen=True)
class Usage:
    """A block's parameters, sorted; disjoint, first match wins.

    Parameters
    ----------
    pending
        Paths of layers whose parameters do not exist yet.
    frozen
        Names of parameters that take no gradient.
    reached
        Names on which some loss depended.
    disconnected
        Names used in a recorded forward on which no loss depended.
    unused
        Names that no recorded forward used.
    outside
        Number of leaves that a loss depended on and that are neither the block's nor watched.
    """

    pending: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    disconnected: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    outside: int = 0

    def __str__(self) -> str:
        lines = [
            f"{label}: {', '.join(found) if found else '-'}"
            for label, found in (
                ("pending", self.pending),
                ("frozen", self.frozen),
                ("reached", self.reached),
                ("disconnected", self.disconnected),
                ("unused", self.unused),
            )
        ]
        return "\n".join([*lines, f"outside: {self.outside}"])


def sort(block: Block, used: set[str], reached: set[str], outside: int) -> Usage:
    """Sort the parameters of a block by what happened to them.

    Parameters
    ----------
    block
        The block.
    used
        Names used in a recorded forward.
    reached
        Names on which a loss depended.
    outside
        Number of foreign leaves.

    Returns
    -------
    Usage
        The sorted names, each group in the order of the block.
    """
    trainable = block.backend.block.trainable
    groups: dict[str, list[str]] = {"frozen": [], "reached": [], "disconnected": [], "unused": []}
    for name, tensor in block.parameters.items():
        if not trainable(tensor):
            groups["frozen"].append(name)
        elif name in reached:
            groups["reached"].append(name)
        elif name in used:
            groups["disconnected"].append(name)
        else:
            groups["unused"].append(name)
    frozen, reached_names, disconnected, unused = (tuple(found) for found in groups.values())
    return Usage(block.pending, frozen, reached_names, disconnected, unused, outside)


def check_policy(on_unused: object) -> None:
    """Raise ``ArgumentError`` unless ``on_unused`` is one of the known policies."""
    if on_unused not in POLICIES:
        raise ArgumentError(f"on_unused is one of {', '.join(map(repr, POLICIES))}, not {on_unused!r}")


def check_expected(block: Block, patterns: Sequence[str]) -> None:
    """Raise ``ArgumentError`` for a pattern that fits no name; layers without parameters yet may still get any name."""
    known = block.memory.expected
    for pattern in patterns:
        if pattern in known or block.pending:
            continue
        found = [*block.parameters, *block.aliases]
        if not any(names.matches(name, pattern) for name in found):
            raise names.explain_no_match(pattern, found, "of expect_unused fits")
        known.add(pattern)


def judge(block: Block, usage: Usage, on_unused: str, expected: Sequence[str], stacklevel: int) -> None:
    """Tell, once for each new set of names, what was left without a gradient.

    Parameters
    ----------
    block
        The block; the sets already told belong to it, or to its parts.
    usage
        The sorted names.
    on_unused
        ``"warn"``, ``"error"`` or ``"ignore"``.
    expected
        Patterns of names that are expected to be unused; one of them that is reached is told too.
    stacklevel
        As for ``warnings.warn``, counted from the caller.

    Raises
    ------
    UnusedParameterError
        If ``on_unused`` is ``"error"`` and there is something to tell.
    """
    if on_unused == "ignore":
        return

    def unexpected(found: Iterable[str]) -> list[str]:
        return [name for name in found if not any(names.matches(name, pattern) for pattern in expected)]

    reasons = [
        ("never used in a recorded forward", unexpected(usage.unused)),
        ("used, but no loss depends on them", unexpected(usage.disconnected)),
        ("layers never called, so that they have no parameters yet", unexpected(usage.pending)),
        (
            "expected to be unused, but a loss depends on them",
            [name for name in usage.reached if any(names.matches(name, pattern) for pattern in expected)],
        ),
    ]
    reasons = [(reason, found) for reason, found in reasons if found]
    if not reasons:
        return
    message = "parameters without a gradient: " if len(reasons) > 1 or not reasons[0][0].startswith("expected") else ""
    message += "; ".join(f"{', '.join(found)} ({reason})" for reason, found in reasons)
    if on_unused == "error":
        raise UnusedParameterError(message)
    if _first_time(block, reasons):
        warnings.warn(message, UnusedParameterWarning, stacklevel=stacklevel + 1)


def _first_time(block: Block, reasons: list[tuple[str, list[str]]]) -> bool:
    fresh = False
    for prefix, part in block.parts():
        key = frozenset(
            (reason, name.removeprefix(prefix))
            for reason, found in reasons
            for name in found
            if name.startswith(prefix)
        )
        if key and key not in part.memory.told:
            part.memory.told.add(key)
            fresh = True
    return fresh
