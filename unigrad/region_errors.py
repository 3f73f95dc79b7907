"""What is wrong with a region, in the same words on every backend that finds it."""

from __future__ import annotations

from collections.abc import Iterable

from unigrad.errors import CreatedParameterError, RecomputeMismatchError, StaleGraphError, UnsupportedError

__all__ = ["argument_changed", "argument_written", "other_recompute", "parameters_created"]


def argument_changed(name: str) -> StaleGraphError:
    """Return the error of an argument, of a name, that was written between forward and backward."""
    return StaleGraphError(
        f"{name} of a checkpointed function was changed in place between forward and backward; "
        "run the forward again, or give it a copy"
    )


def argument_written(name: str) -> UnsupportedError:
    """Return the error of an argument, of a name, that the function itself writes."""
    return UnsupportedError(
        f"the checkpointed function changes {name} in place, so that it cannot be run again; let it work on a copy"
    )


def parameters_created(names: Iterable[str]) -> CreatedParameterError:
    """Return the error of parameters, told by name or shape, that the recompute used and the forward did not."""
    return CreatedParameterError(
        f"the recompute of a checkpointed function uses parameters that its forward did not know ({', '.join(names)}): if the function "
        "creates them on each call, the gradient would belong to what is thrown away; create the layer once, outside of the function. "
        "If a layer was replaced after the forward, run the forward again"
    )


def other_recompute(what: str, forward: str, recompute: str) -> RecomputeMismatchError:
    """Return the error of a recompute that did something else than the forward."""
    return RecomputeMismatchError(
        f"the recompute of a checkpointed region is not its forward: {what}; forward: {forward}; recompute: {recompute}. "
        "The function must do the same on each call: look for counters, flags and caches that it reads or changes"
    )
