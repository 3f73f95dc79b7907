"""Peaks of MindSpore are those of a first step: what a step has taken it keeps (clause Y2)."""

import os
import subprocess
import sys

import pytest
from unigrad_conformance.bench_peak import ALLOCATOR

STEPS = """
from pathlib import Path
import unigrad_mindspore.bench as native
from unigrad_conformance.bench_peak import _memory

def step(width):
    model = native.stack(6, width, "tanh")
    return native.step(model, list(model.trainable_params()), native.data(2 * width, width))

step(8)()
run = step(512)
for _ in range(3):
    Path("/proc/self/clear_refs").write_text("5")
    level = _memory("VmRSS")
    run()
    print(_memory("VmHWM") - level)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc/self/status")
def test_y2_only_the_first_step_shows_its_peak():
    """Hence KEEPS_MEMORY of the backend's bench; without it, ratios of peaks are ratios of a few pages."""
    process = subprocess.run(
        [sys.executable, "-P", "-c", STEPS],
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    first, *later = map(int, process.stdout.split()[-3:])
    # Six inputs of layers (1024, 512) and six gradients (512, 512) in float32, 4 bytes each.
    assert first > 6 * (1024 * 512 + 512 * 512) * 4
    assert max(later) < first / 50
