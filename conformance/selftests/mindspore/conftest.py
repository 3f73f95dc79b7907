"""What the tests of the MindSpore backend share: MindSpore without its noise, the same numbers and flags in each test."""

import os

os.environ.setdefault("GLOG_v", "3")

import pytest

import unigrad


@pytest.fixture(autouse=True)
def same_start():
    """Seed everything, work in a folder of one's own, and see that no test leaves recording on or a mode open."""
    unigrad.get_backend("mindspore")
    from unigrad_mindspore import pynative

    unigrad.seed(0)
    pynative.set_flags(False, True)
    yield
    assert (pynative.grad_flag(), pynative.recording_allowed(), pynative.mode_depth()) == (False, True, 0)


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """MindSpore writes files into the working folder when a compilation fails."""
    monkeypatch.chdir(tmp_path)
