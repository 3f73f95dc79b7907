"""What the tests of the Paddle backend share: Paddle without its noise, the same numbers in each test."""

import os
import warnings

os.environ.setdefault("GLOG_minloglevel", "2")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle

import pytest

import unigrad


@pytest.fixture(autouse=True)
def same_numbers():
    """Seed everything, and see that no test leaves recording off."""
    unigrad.get_backend("paddle")
    unigrad.seed(0)
    yield
    assert paddle.is_grad_enabled()
