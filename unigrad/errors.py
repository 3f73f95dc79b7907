"""Every exception of unigrad, in one tree.

::

    UnigradError
    ├── BackendNotFoundError (LookupError)      no installed distribution declares this name
    ├── BackendConflictError                    two distributions declare one name, or serve one framework
    ├── BackendUnavailableError (ImportError)
    │   ├── BackendMissingError                 its framework is not installed
    │   ├── BackendBrokenError                  its framework, or its own code, does not import
    │   ├── BackendTooOldError                  its framework is older than it supports
    │   └── BackendImportOrderError             importing it now would kill the process
    ├── BackendMismatchError (TypeError)        an object of one framework given to another's collector
    ├── ArgumentError (ValueError)              an argument with a value that means nothing here
    ├── ArgumentTypeError (TypeError)           an argument of the wrong type
    ├── UnsupportedError (NotImplementedError)  this backend does not declare the operation
    ├── LossError (ValueError)                  not a loss: wrong shape, wrong cotangent
    │   └── NoGraphError                        nothing was recorded that leads to this loss
    ├── GraphError (RuntimeError)
    │   ├── GraphReleasedError                  an earlier backward released this graph
    │   ├── StaleGraphError                     a value that the graph needs was changed since
    │   └── RecordingLostError                  recording was switched off from outside
    ├── UnreducedError (RuntimeError)           gradients that the processes have not exchanged
    ├── CollectorClosedError (RuntimeError)     used before entering or after leaving
    ├── WrongThreadError (RuntimeError)         used by a thread that did not open it
    ├── NotBuiltError (RuntimeError)            layers whose parameters do not exist yet
    ├── StateMismatchError (ValueError)         names, shapes, dtypes or roles do not fit; all listed
    ├── StateFileError (ValueError)             a file that is not a whole, well-formed state file
    ├── CheckpointError (RuntimeError)
    │   ├── RecomputeMismatchError              the recompute is not the forward
    │   ├── CapturedTensorError                 a tensor entered the region by the back door
    │   └── CreatedParameterError               a parameter is created inside on each call
    ├── BatchCoupledError (RuntimeError)        samples of a batch depend on each other
    └── UnusedParameterError (RuntimeError)     on_unused="error"

    UserWarning
    └── UnusedParameterWarning
"""

from __future__ import annotations


class UnigradError(Exception):
    """Root of every error that unigrad raises by itself."""


class BackendNotFoundError(UnigradError, LookupError):
    """No installed distribution declares a backend of this name."""


class BackendConflictError(UnigradError):
    """Two distributions declare a backend of one name, or two backends serve the objects of one framework."""


class BackendUnavailableError(UnigradError, ImportError):
    """A declared backend cannot be loaded."""


class BackendMissingError(BackendUnavailableError):
    """The framework of the backend is not installed."""


class BackendBrokenError(BackendUnavailableError):
    """The framework of the backend, or the backend's own code, does not import."""


class BackendTooOldError(BackendUnavailableError):
    """The framework is installed in a version older than the backend supports."""


class BackendImportOrderError(BackendUnavailableError):
    """Importing this framework after one that is already loaded is known to kill the process."""


class BackendMismatchError(UnigradError, TypeError):
    """A tensor, block or optimizer of one framework was given to another's."""


class ArgumentError(UnigradError, ValueError):
    """An argument has a value that means nothing here."""


class ArgumentTypeError(UnigradError, TypeError):
    """An argument has the wrong type."""


class UnsupportedError(UnigradError, NotImplementedError):
    """The backend does not declare the operation; nothing was run."""


class LossError(UnigradError, ValueError):
    """The object given to ``backward`` is not a usable loss."""


class NoGraphError(LossError):
    """Nothing was recorded that leads to this loss; raised without a text it names the usual causes."""

    def __init__(
        self,
        text: str = "nothing was recorded that leads to this loss: it is a constant, was detached from its graph "
        "(stop_gradient), depends on frozen parameters only, or was made where recording was off (no_grad) or outside of the "
        "collector; run the forward inside",
    ) -> None:
        super().__init__(text)


class GraphError(UnigradError, RuntimeError):
    """The recorded graph cannot be differentiated any more."""


class GraphReleasedError(GraphError):
    """An earlier backward without ``retain_graph`` released a part of this graph; without a text it says what to do."""

    def __init__(
        self,
        text: str = "the graph of this loss, or a part of it, was released by an earlier backward; pass retain_graph=True to "
        "that one, or run the forward again",
    ) -> None:
        super().__init__(text)


class StaleGraphError(GraphError):
    """A value that the graph needs was changed after the forward; without a text it says what to do."""

    def __init__(
        self,
        text: str = "a value that the graph of this loss needs was changed in place after the forward; run the forward again "
        "after the change",
    ) -> None:
        super().__init__(text)


class RecordingLostError(GraphError):
    """Recording was switched off from outside while a collector was open."""


class UnreducedError(UnigradError, RuntimeError):
    """Gradients of a model in several processes that the processes have not exchanged, or would not exchange."""


class CollectorClosedError(UnigradError, RuntimeError):
    """The collector is not open."""


class WrongThreadError(UnigradError, RuntimeError):
    """A collector was used by a thread that did not open it."""


class NotBuiltError(UnigradError, RuntimeError):
    """Some layers have no parameters yet."""


class StateMismatchError(UnigradError, ValueError):
    """A state does not fit the block; the message lists every mismatch and nothing was changed."""


class StateFileError(UnigradError, ValueError):
    """A file is not a whole, well-formed state file."""


class CheckpointError(UnigradError, RuntimeError):
    """A checkpointed region cannot be recomputed faithfully."""


class RecomputeMismatchError(CheckpointError):
    """The recompute gave another structure, shape, dtype or value than the forward."""


class CapturedTensorError(CheckpointError):
    """A tensor that needs a gradient entered the region without being an argument."""


class CreatedParameterError(CheckpointError):
    """A parameter is created inside the region on each call."""


class BatchCoupledError(UnigradError, RuntimeError):
    """Samples of a batch depend on each other, so that the batch cannot be split."""


class UnusedParameterError(UnigradError, RuntimeError):
    """Parameters were left without a gradient under ``on_unused="error"``."""


class UnusedParameterWarning(UserWarning):
    """Parameters were left without a gradient; the message names them and says why."""
