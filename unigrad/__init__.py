"""One gradient contract over several deep-learning frameworks."""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from unigrad.block import Block
from unigrad.checkpoint import checkpoint
from unigrad.collector import GradientCollector
from unigrad.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendBrokenError,
    BackendConflictError,
    BackendImportOrderError,
    BackendMismatchError,
    BackendMissingError,
    BackendNotFoundError,
    BackendTooOldError,
    BackendUnavailableError,
    BatchCoupledError,
    CapturedTensorError,
    CheckpointError,
    CollectorClosedError,
    CreatedParameterError,
    GraphError,
    GraphReleasedError,
    LossError,
    NoGraphError,
    NotBuiltError,
    RecomputeMismatchError,
    RecordingLostError,
    StaleGraphError,
    StateFileError,
    StateMismatchError,
    UnigradError,
    UnreducedError,
    UnsupportedError,
    UnusedParameterError,
    UnusedParameterWarning,
    WrongThreadError,
)
from unigrad.hooks import hookimpl
from unigrad.memory import kept_bytes
from unigrad.microbatch import microbatch
from unigrad.optimizer import Optimizer
from unigrad.plugins import backend_names, backend_of, get_backend
from unigrad.protocols import Backend, BackendSpec, Capability, Guarantee
from unigrad.random import register_generator, seed
from unigrad.training import load_training, save_training
from unigrad.usage import Usage
from unigrad.wrapping import join, wrap

try:
    __version__ = _version("unigrad")
except _PackageNotFoundError:  # run from a tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Backend",
    "BackendBrokenError",
    "BackendConflictError",
    "BackendImportOrderError",
    "BackendMismatchError",
    "BackendMissingError",
    "BackendNotFoundError",
    "BackendSpec",
    "BackendTooOldError",
    "BackendUnavailableError",
    "BatchCoupledError",
    "Block",
    "Capability",
    "CapturedTensorError",
    "CheckpointError",
    "CollectorClosedError",
    "CreatedParameterError",
    "GradientCollector",
    "GraphError",
    "GraphReleasedError",
    "Guarantee",
    "LossError",
    "NoGraphError",
    "NotBuiltError",
    "Optimizer",
    "RecomputeMismatchError",
    "RecordingLostError",
    "StaleGraphError",
    "StateFileError",
    "StateMismatchError",
    "UnigradError",
    "UnreducedError",
    "UnsupportedError",
    "UnusedParameterError",
    "UnusedParameterWarning",
    "Usage",
    "WrongThreadError",
    "__version__",
    "backend_names",
    "backend_of",
    "checkpoint",
    "get_backend",
    "hookimpl",
    "join",
    "kept_bytes",
    "load_training",
    "microbatch",
    "register_generator",
    "save_training",
    "seed",
    "wrap",
]
