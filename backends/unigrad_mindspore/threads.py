"""One thread for each CPU kernel, set when the backend is loaded, so that equal calls give equal bits.

With more threads MindSpore tries several divisions of a tensor among them in the first calls of a kernel and keeps the fastest.
The vector part of a kernel (``log``, ``pow``, ``softplus``, ``mish``, some gradients) rounds otherwise than its part for the last
elements of a division, so that a recompute would differ from its forward in the last bits.
"""

from __future__ import annotations

import mindspore

from unigrad.errors import RecomputeMismatchError

__all__ = ["explained_mismatch"]

_TUNING = mindspore.device_context.cpu.op_tuning


def _set() -> bool:
    """Return whether it could be set: MindSpore takes the number once, and the user's own comes first."""
    try:
        _TUNING.threads_num(1)
    except RuntimeError:
        return False
    return True


_ours = _set()


def explained_mismatch(error: RecomputeMismatchError) -> RecomputeMismatchError:
    """Return the error with what else it may come from, where the number of threads is the user's."""
    if _ours:
        return error
    return RecomputeMismatchError(
        f"{error}. It may also be MindSpore itself: the number of kernel threads (op_tuning.threads_num) was set before unigrad was "
        "loaded, and with more than one, log, pow, softplus and other kernels give other last bits in their first calls; set it to 1, or "
        "leave it to unigrad"
    )
