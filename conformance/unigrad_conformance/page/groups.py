"""What one cell of the matrix did: its tests, those of one function and one outcome together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unigrad_conformance.results import Result

__all__ = ["Group", "groups_of"]

_ORDER = ("failed", "no sample", "known failure", "refused", "passed")


@dataclass(frozen=True)
class Group:
    """Tests of one function that had one outcome for one reason.

    Parameters
    ----------
    file, function
        Where it stands.
    outcome, reason, url
        What they did.
    variants
        Parameters of each, without brackets; ``("",)`` for a test without any.
    cases, needs
        Numbers of cases and names of capabilities.
    duration_s
        Of all together.
    failure
        Anchor of the first of them in the list of failures, or an empty text.
    """

    file: str
    function: str
    outcome: str
    reason: str
    url: str
    variants: tuple[str, ...]
    cases: tuple[int, ...]
    needs: tuple[str, ...]
    duration_s: float
    failure: str


def groups_of(results: Iterable[Result], failures: Mapping[str, str]) -> list[Group]:
    """Group results, the worst outcome first.

    Parameters
    ----------
    results
        Tests of one clause on one backend.
    failures
        Id of a test to its anchor in the list of failures.
    """
    found: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        name = result.id.partition("[")[0]
        found.setdefault((name, result.outcome, result.reason.partition("\n")[0], result.url), []).append(result)
    groups = [_group(key, together, failures) for key, together in found.items()]
    return sorted(groups, key=lambda group: _ORDER.index(group.outcome))


def _group(key: tuple[str, ...], results: list[Result], failures: Mapping[str, str]) -> Group:
    name, outcome, reason, url = key
    file, _, function = name.rpartition("::")
    return Group(
        file,
        function,
        outcome,
        reason,
        url,
        tuple(result.id.partition("[")[2].removesuffix("]") for result in results),
        tuple(dict.fromkeys(case for result in results for case in result.cases)),
        tuple(dict.fromkeys(need for result in results for need in result.needs)),
        sum(result.duration_s for result in results),
        next((failures[result.id] for result in results if result.id in failures), ""),
    )
