"""Mixed precision of Cells: an exception leaves it on, or switches it off; here it ends as it began."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mindspore.train.amp import AmpDecorator

from unigrad_mindspore.pynative import (
    amp_strategy,
    pop_precision,
    precisions,
    push_precision,
    repair_precisions,
)

__all__ = ["Precision", "kept"]


@contextmanager
def kept() -> Iterator[None]:
    """Surround what may raise: a Cell of ``to_float`` does not undo its precision then, and later operations would be in it.

    An error of an operation, on the other hand, makes MindSpore forget all precisions, also those of Cells that go on; one that
    ends after that undoes what is not there, which ends the process or leaves another precision.
    """
    depth = len(precisions())
    try:
        yield
    except BaseException:
        repair_precisions(depth)
        raise


@dataclass(frozen=True)
class Precision:
    """The mixed precision that operations run in."""

    kind: Any
    strategy: Any

    @classmethod
    def now(cls) -> Precision:
        """Return the present one."""
        kinds = precisions()
        return cls(kinds[-1] if kinds else None, amp_strategy())

    @contextmanager
    def again(self) -> Iterator[None]:
        """Surround a recompute."""
        kinds = precisions()
        other = self.kind != (kinds[-1] if kinds else None)
        strategy = self.strategy
        with kept():
            if other:
                push_precision(self.kind)
            if strategy is None:
                yield
            else:
                lists = strategy.get_white_list(), strategy.get_black_list()
                with AmpDecorator(strategy.get_amp_level(), strategy.get_amp_dtype(), *lists):
                    yield
            if other:
                pop_precision()
