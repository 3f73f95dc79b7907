"""What the tests of the PyTorch backend share."""

import contextlib

import pytest


@pytest.fixture(params=["marks", "mode"])
def watching(request):
    """Return a context that gives, at its end, the leaves used in it; by marked leaves and by a mode that sees all."""
    from unigrad_torch import tape

    @contextlib.contextmanager
    def watch(*leaves):
        seen = []
        region = tape.open_region()
        region.expect(leaves, request.param == "mode")
        try:
            yield seen
            seen += region.used()
        finally:
            tape.close_region(region)

    return watch
