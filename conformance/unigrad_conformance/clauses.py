"""The clauses of the contract: their names, titles, who checks them and what a backend may decline."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unigrad.errors import ArgumentError
from unigrad.protocols import Capability, Guarantee

__all__ = ["CLAUSES", "Clause", "clauses_named"]


@dataclass(frozen=True)
class Clause:
    """One promise.

    Parameters
    ----------
    name, title
        For example ``"G1"`` and one line.
    governed
        Capabilities and guarantees that govern a part of it; without any the clause is mandatory as a whole.
    checked_by
        ``"suite"``, or who else checks it; ``"later"`` where the tests are still to come.
    """

    name: str
    title: str
    governed: tuple[Capability | Guarantee, ...] = ()
    checked_by: str = "suite"


_SELFTESTS = "selftests"
_AGREEMENT = "agreement"

CLAUSES: dict[str, Clause] = {
    clause.name: clause
    for clause in (
        Clause("A1", "backends are found by metadata and loaded by name", checked_by=_SELFTESTS),
        Clause("A2", "missing, broken, too old, unknown and doubled backends say what to do", checked_by=_SELFTESTS),
        Clause("A3", "a broken backend is a row, never a crash of the others", checked_by=_SELFTESTS),
        Clause("A4", "objects of another framework are a TypeError naming both"),
        Clause("A5", "import orders that kill the process are refused before the import", checked_by=_SELFTESTS),
        Clause("A6", "capabilities and guarantees are declared and true", tuple(Guarantee)),
        Clause("B1", "parameters have structural, canonical, unique names"),
        Clause("B2", "buffers are what a forward changes or a file keeps without being trained"),
        Clause("B3", "train, eval, freeze and copy mean the same everywhere"),
        Clause("B4", "pending layers are known by name", (Capability.LAZY_LAYERS,)),
        Clause("B5", "state moves as NumPy arrays, checked as a whole before anything changes"),
        Clause("B6", "NumPy interchange copies"),
        Clause("B7", "a mapping is a block, and blocks can be joined"),
        Clause("B8", "registered names belong to the block and last"),
        Clause("B9", "a frozen normalization layer uses its running statistics"),
        Clause("G0", "what is recorded, and for how long", (Guarantee.AMBIENT_GRAPH,)),
        Clause("G1", "write replaces, add sums"),
        Clause("G2", "repeated backward with a retained graph"),
        Clause("G3", "released means released", (Guarantee.INDEPENDENT_RELEASE, Guarantee.SHARED_TRUNK)),
        Clause("G4", "a collector touches its own block only"),
        Clause("G5", "zero clears to none"),
        Clause("G6", "a gradient is there only if the loss depends on the parameter"),
        Clause("G7", "what is handed out is a snapshot"),
        Clause("G8", "wrong losses are errors that name the cause"),
        Clause("G9", "watched tensors get input gradients"),
        Clause("G10", "several losses and several uses sum"),
        Clause("G11", "weighted accumulation is the mean over all items"),
        Clause("G12", "the gradient has the parameter's dtype"),
        Clause("G13", "the native engine is used when it must be, and said"),
        Clause("G14", "parameters changed after the forward", (Guarantee.STALE_NATIVE, Guarantee.STALE_HIDDEN)),
        Clause("G15", "nothing leaks"),
        Clause("G16", "a collector belongs to its thread", (Guarantee.THREADS,)),
        Clause("G17", "second order", (Capability.SECOND_ORDER,)),
        Clause("G18", "gradients reach the framework's own tools and unigrad's optimizer"),
        Clause("G19", "compiled steps work or are refused", (Capability.COMPILED_STEP,), checked_by=_SELFTESTS),
        Clause("R1", "a parameter is registered by its first use in a recorded forward"),
        Clause("R2", "usage sorts parameters into five disjoint sets"),
        Clause("R3", "unused parameters are told once, at the right time"),
        Clause("R4", "optimizer state exists for registered parameters only"),
        Clause("R5", "every backend gives the same five sets"),
        Clause("C0", "the plain run is the call of the block"),
        Clause("C1", "checkpointing changes no bit", (Guarantee.BITEXACT_SHARING,)),
        Clause("C2", "random streams go on as in the plain run", (Capability.OWN_GENERATORS,)),
        Clause("C3", "buffers change once, at forward time"),
        Clause("C4", "only inputs, outputs, buffers and random state are kept"),
        Clause("C5", "it is the function in everything but memory", (Capability.NESTED_CHECKPOINT,)),
        Clause("C6", "unused stays unused"),
        Clause("C7", "parameters created on each call are an error", (Capability.LAZY_LAYERS,)),
        Clause("C8", "a recompute that differs is an error"),
        Clause("C9", "every declared dtype and mixed precision", (Capability.MIXED_PRECISION,)),
        Clause("C10", "captured tensors are routed or refused", (Capability.CAPTURES,)),
        Clause("C11", "exceptions keep their type"),
        Clause(
            "C12",
            "what cannot be kept is refused",
            (Capability.SECOND_ORDER_CHECKPOINT, Capability.COMPILED_STEP),
        ),
        Clause("C13", "a native module stays a native module"),
        Clause("M1", "microbatch equals the loop over parts and the whole batch"),
        Clause("M2", "several inputs and outputs, whole and combined ones"),
        Clause("M3", "any size of part; what cannot be split is an error"),
        Clause("M4", "random layers agree in every part"),
        Clause("M5", "samples that depend on each other are refused"),
        Clause("M6", "memory falls with the number of parts", (Capability.KEPT_BYTES,)),
        Clause("M7", "microbatch of a native module is a native module"),
        Clause("Y1", "kept_bytes counts what is held for backward", (Capability.KEPT_BYTES,)),
        Clause("Y2", "peaks are measured in a fresh process", checked_by="unigrad bench"),
        Clause("D1", "same seed, same bits in a new process"),
        Clause("D2", "a resumed run continues with the same bits"),
        Clause("D3", "snapshot and restore cover every declared random source"),
        Clause("X1", "backends agree within the stated bounds", checked_by=_AGREEMENT),
        Clause("X2", "choices at kinks are flagged", checked_by=_AGREEMENT),
        Clause("X3", "conventions are stated by the samples"),
        Clause("X4", "the reference is checked by differences and by another library", checked_by=_SELFTESTS),
        Clause("X5", "every mutant is killed by the test that names its clause", checked_by="unigrad check --mutants"),
    )
}
"""Clause by name, in the order of the contract."""


def clauses_named(text: str) -> tuple[str, ...]:
    """Return the clauses that a text names and nothing else, as ``"G1"``, ``"g1, c4"`` or ``"G1 or C4"``; else none.

    Raises
    ------
    ArgumentError
        If it names clauses, one of which does not exist.
    """
    words = [word.upper() for word in re.split(r"[\s,]+(?:or\s+)?", text.strip()) if word]
    unknown = [word for word in words if word not in CLAUSES]
    if unknown and len(unknown) < len(words) and all(re.fullmatch(r"[A-Z]\d{1,2}", word) for word in unknown):
        # As an expression over names of tests it would be something else in silence.
        raise ArgumentError(f"there is no clause {' or '.join(unknown)}; the clauses are {', '.join(CLAUSES)}")
    return () if unknown else tuple(dict.fromkeys(words))
