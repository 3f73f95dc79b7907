"""What the tests of the PyTorch backend share."""

import contextlib

import pytest
from torch import distributed


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


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
