"""What torch's errors in a backward mean here."""

from __future__ import annotations

from unigrad.errors import GraphReleasedError, LossError, StaleGraphError, UnigradError, UnsupportedError

_SECOND = "backward through the graph a second time"
_CHANGED = "modified by an inplace operation"
_NODES = "_will_engine_execute_node"
_COMPLEX = "only for real scalar outputs"


def translated(error: RuntimeError) -> UnigradError | None:
    """Return the error to raise in place of torch's own; None for one that says it well enough or is the user's."""
    text = str(error)
    if _SECOND in text:
        return GraphReleasedError(
            "a part of this graph was released by an earlier backward; pass retain_graph=True to that one"
        )
    if _CHANGED in text:
        return StaleGraphError(
            f"a value that the graph needs was changed in place after the forward; run the forward again after the change: {text}"
        )
    if _NODES in text:
        return UnsupportedError(
            "something asks in this backward which nodes run, as register_multi_grad_hook does, which torch can't answer for gradients "
            "of leaves (https://github.com/pytorch/pytorch/issues/131753); register a hook on each tensor, or one after accumulation"
        )
    if _COMPLEX in text:
        return LossError(
            "the loss is complex, so it has no gradient by itself; take its real part or its absolute value, or give cotangent="
        )
    return None
