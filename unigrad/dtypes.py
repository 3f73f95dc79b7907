"""Dtypes that NumPy has only with the package ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad.errors import UnsupportedError

__all__ = ["ml_dtype"]


def ml_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name such as ``"bfloat16"``.

    Parameters
    ----------
    name
        Its name.

    Raises
    ------
    UnsupportedError
        If the package is not installed, or has no such dtype.
    """
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as cause:
        raise UnsupportedError(
            f"NumPy itself has no dtype {name}. Install the package that adds it with: pip install ml_dtypes"
        ) from cause
