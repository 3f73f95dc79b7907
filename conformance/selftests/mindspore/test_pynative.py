"""The private engine behind one module: what is missing or behaves otherwise in another version is named."""

import subprocess
import sys
import textwrap

import pytest
from unigrad_mindspore import pynative

from unigrad.errors import BackendBrokenError


def test_the_installed_version_behaves_as_the_backend_relies_on():
    observed = pynative._observe()
    pynative.set_flags(False, True)
    assert {what: found for what, (found, _) in observed.items()} == {
        what: wanted for what, (_, wanted) in observed.items()
    }


@pytest.mark.parametrize("what", ["gradient of what a loss does not reach", "error of a second backward"])
def test_other_behaviour_is_named(what):
    observed = pynative._observe()
    pynative.set_flags(False, True)
    observed[what] = ("zeros", observed[what][1])
    with pytest.raises(BackendBrokenError, match=what) as caught:
        pynative._check(observed)
    assert "2.10" in str(caught.value)


@pytest.mark.parametrize(
    ("take_away", "told"),
    [
        ("del mindspore._c_expression.run_backward", "run_backward"),
        ("del mindspore._c_expression._DispatchGuardStack", "_DispatchGuardStack"),
        ("del mindspore.saved_tensors_hooks", "saved_tensors_hooks"),
        ("del sys.modules['mindspore.common.seed']._KERNEL_SEED", "_KERNEL_SEED"),
        (
            "del type(mindspore.graph.api._pynative_executor).queue_backward_final_callback",
            "queue_backward_final_callback",
        ),
    ],
)
def test_a_missing_part_is_named_when_the_backend_is_loaded(take_away, told):
    program = f"""
        import sys, mindspore, mindspore.graph.api, unigrad
        {take_away}
        try:
            unigrad.get_backend("mindspore")
        except unigrad.BackendBrokenError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=200
    )
    assert told in done.stdout, done.stderr
    assert "mindspore 2.10" in done.stdout
