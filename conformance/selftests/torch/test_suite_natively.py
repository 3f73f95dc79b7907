"""The suite's tests of collectors hold when the native engine serves every one of them (clauses G1 to G18, R1, R2)."""

import os
import subprocess
import sys

import unigrad_conformance

FORCE = """
import unigrad_torch.tape as tape

chosen = tape.engine


def engine(model, structure):
    chosen(model, structure)
    return "native"


tape.engine = engine
"""
ABOUT_THE_PURE_ENGINE = {
    "test_collector_coexist.py::test_only_own_parameters_are_differentiated": "counts calls of the pure engine",
    "test_collector_engine.py::test_a_plain_model_is_served_by_the_pure_engine": "its name",
    "test_collector_engines.py::test_every_engine_is_said_and_accumulates_alike": "its name",
    "test_collector_leaks.py::test_a_fault_of_the_engine_in_backward[write-vjp]": "breaks the pure engine",
    "test_collector_leaks.py::test_a_fault_of_the_engine_in_backward[add-vjp]": "breaks the pure engine",
    "test_collector_second_order.py::test_the_gradient_of_a_gradient": "refused by name",
    "test_collector_second_order.py::test_a_gradient_penalty_of_an_input": "refused by name",
    "test_collector_second_order.py::test_create_graph_keeps_the_graph": "refused by name",
    "test_collector_second_order.py::test_a_sum_of_created_gradients_stays_connected": "refused by name",
}
"""Tests that must fail, with the reason."""


def test_the_suite_holds_natively(tmp_path):
    (tmp_path / "force_native.py").write_text(FORCE)
    options = ["-q", "-p", "no:cacheprovider", "-p", "unigrad_conformance.plugin", "-p", "force_native", "--noconftest"]
    places = ["-c", f"{unigrad_conformance.__path__[0]}/pytest.ini", "--rootdir", str(tmp_path), "--pyargs"]
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", *options, *places, "unigrad_conformance.suite"),
            *("--unigrad-backend=torch", "-k", "test_collector or test_usage or test_registration", "-rf"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")}
    assert failed == set(ABOUT_THE_PURE_ENGINE), done.stdout[-6000:] + done.stderr
    assert " passed" in done.stdout
