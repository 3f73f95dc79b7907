"""Made-up results for the tests of the HTML page: green ones, and ones full of failures, crashes and hostile texts."""

import numpy as np
from unigrad_conformance.observations import observe
from unigrad_conformance.results import Result, Session

UPSTREAM = "https://github.com/example/framework/issues/1"
LONG = "test_collector.py::test_" + "a_very_long_name_" * 20 + "[" + "parameter-" * 12 + "]"
HOSTILE = "test_x.py::<script>document.title='owned'</script>[<img src=x onerror=alert(1)>\"' `$(id)`]"
TRACEBACK = "    def test_add():\n>       assert 1 == 2\nE       assert 1 == 2\n" + "x" * 300
SEEN = np.linspace(-1.0, 1.0, 12).reshape(3, 4)


def seen(name, value, **options):
    return observe(name, value, **{"terms": 4, "reason": "four terms are summed", **options})


def passed(test, *clauses, observations=(), **options):
    return Result(test, "passed", clauses or ("G1",), observations=tuple(observations), duration_s=0.01, **options)


def session(name, results, status="complete", **options):
    about = {
        "target": name,
        "python": "3.11.7",
        "platform": "Linux-6.1-x86_64",
        "framework": f"{name}-framework",
        "framework_version": "1.2.3",
        "unigrad_version": "0.1.0",
        "capabilities": ("CAPTURES",),
        "guarantees": {"THREADS": "kept", "STALE_HIDDEN": "undetected"},
        "dtypes": ("float32", "float64"),
        "duration_s": 12.5,
    }
    return Session(name, status, results=tuple(results), **{**about, **options})


def reference():
    return session(
        "numpy",
        [
            passed("test_a.py::test_plain", "G1", observations=[seen("equal", SEEN), seen("near", SEEN)]),
            passed("test_a.py::test_far", "G2", "X1", observations=[seen("far", SEEN), seen("nan", SEEN)]),
            passed("test_a.py::test_kink", "X2", observations=[seen("slope", np.array([0.5]), choice=True)]),
            *(passed(f"test_a.py::test_many[{number}]", "C1", cases=(88,)) for number in range(6)),
            Result(
                "test_a.py::test_second", "refused", ("G17",), needs=("SECOND_ORDER",), reason="twice: not declared"
            ),
            Result("test_a.py::test_odd", "no sample", ("G14",), mandatory=False, reason="no such tensor"),
        ],
    )


def green():
    """Two backends that agree; one observation uses a tenth of its bound."""
    near = SEEN + seen("near", SEEN).bound / 10
    return [
        reference(),
        session(
            "other",
            [
                passed("test_a.py::test_plain", "G1", observations=[seen("equal", SEEN), seen("near", near)]),
                passed("test_a.py::test_far", "G2", "X1", observations=[seen("far", SEEN), seen("nan", SEEN)]),
                passed("test_a.py::test_kink", "X2", observations=[seen("slope", np.array([1.0]), choice=True)]),
                *(passed(f"test_a.py::test_many[{number}]", "C1", cases=(88,)) for number in range(6)),
                Result("test_a.py::test_second", "known failure", ("G17",), reason="draws anew", url=UPSTREAM),
            ],
        ),
    ]


def wide():
    """Six backends with long names, each of which ended in several ways in the tests of one clause."""
    endings = ("SIGSEGV", "exit code 134", "left a process", "memory limit")
    results = [
        Result(f"test_a.py::test_{n}", "failed", ("G1",), reason=f"process ended ({ending})", ending=ending)
        for n, ending in enumerate(endings)
    ]
    return [session(f"a_backend_of_our_own_hardware_{n}", results, platform="x" * 80) for n in range(6)]


def troubled():
    """Five backends: the reference, one that fails and disagrees, one that died, one that does not load, a hostile one."""
    apart = SEEN + 40 * seen("far", SEEN).bound
    failing = session(
        "failing",
        [
            passed("test_a.py::test_plain", "G1", observations=[seen("equal", SEEN), seen("near", SEEN)]),
            passed("test_a.py::test_far", "G2", "X1", observations=[seen("far", apart), seen("nan", SEEN * np.nan)]),
            Result(LONG, "failed", ("G1", "C4"), reason="assert 1 == 2\nmore", details=TRACEBACK, duration_s=1.5),
            Result("test_a.py::test_sample", "no sample", ("B9",), reason="no such layer"),
            *(
                Result(f"test_a.py::test_f[{n}]", "failed", ("M1",), reason=f"E{n}", details=f"Error {n}")
                for n in range(30)
            ),
        ],
    )
    died = session(
        "died",
        [
            passed("test_a.py::test_plain", "G1"),
            Result("test_a.py::test_crash", "failed", ("G3",), reason="process died (SIGSEGV)", ending="SIGSEGV"),
            *(
                Result(f"test_a.py::test_r[{n}]", "failed", ("R1",), reason="not run: process died", ran=False)
                for n in range(5)
            ),
        ],
        status="died",
        message="process died (SIGSEGV); its last lines:\nSegmentation fault",
        target="died=/opt/a folder/bin/python",
    )
    hostile = session(
        "hostile",
        [
            Result(
                HOSTILE, "failed", ("G1",), reason="</pre><b>bold</b>", details="\x1b[31mred \u202egnp \ud800 &amp;"
            ),
            Result("test_x.py::test_k", "known failure", ("G2",), reason="<i>r</i>", url="javascript:alert(1)"),
            Result("no separator", "refused", ("G5",), reason="</script><script>alert(1)</script>"),
        ],
        framework='"><b>framework',
        status="complete",
    )
    unavailable = Session("absent", "unavailable", "backend 'absent' does not load: ImportError: libx.so.1")
    return [reference(), failing, died, hostile, unavailable]
