"""Small promises of the core that need a look inside, or a backend that declares less than the built-in ones."""

import dataclasses
import gc
import sys

import numpy as np
import pytest
import unigrad_numpy
from unigrad_numpy import Parameter, Tensor, nn

import unigrad
from unigrad import wrapping
from unigrad.protocols import Capability

checkpoint_module = sys.modules["unigrad.checkpoint"]  # the package gives the name to the function


class Counting(dict):
    def __init__(self, *args):
        super().__init__(*args)
        self.pops = 0

    def pop(self, *args):
        self.pops += 1
        return super().pop(*args)


def test_a_mapping_is_forgotten_once_not_once_for_each_of_its_tensors(monkeypatch):
    gc.collect()  # what earlier tests left would be forgotten meanwhile
    memories = Counting(wrapping._memories)
    monkeypatch.setattr(wrapping, "_memories", memories)
    tensors = {f"p{index}": Parameter(np.ones(1, "float32")) for index in range(50)}
    block = unigrad.wrap(tensors)
    key = wrapping._key(tensors)
    assert key in memories
    del block, tensors
    gc.collect()
    assert key not in memories
    assert memories.pops == 1


def test_a_failed_save_names_the_file_that_was_asked_for(tmp_path):
    block = unigrad.wrap(nn.Linear(2, 1))
    with pytest.raises(FileNotFoundError) as raised:
        block.save(tmp_path / "missing" / "state.st")
    assert raised.value.filename == str(tmp_path / "missing" / "state.st")
    with pytest.raises(IsADirectoryError, match="the file to write is a folder"):
        block.save(tmp_path)
    with pytest.raises(unigrad.StateFileError, match="is a folder, not a file"):
        block.load(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_name_is_answered_with_the_near_one():
    model = nn.Linear(2, 1)
    with unigrad.GradientCollector(model) as collector:
        collector.backward(model(Tensor(np.ones((1, 2), "float32"))).sum())
    with pytest.raises(KeyError, match="did you mean 'weight'"):
        collector.gradients["wieght"]


@pytest.mark.parametrize("blocks", [None, [], "model"], ids=["left-out", "none-of-them", "given"])
def test_captures_are_asked_for_only_where_blocks_are_left_out(blocks, monkeypatch):
    full = unigrad.get_backend(unigrad_numpy.unigrad_backend().name)
    less = full.spec.capabilities - {Capability.CAPTURES}
    backend = dataclasses.replace(full, spec=dataclasses.replace(full.spec, capabilities=less))
    monkeypatch.setattr(checkpoint_module, "common_backend", lambda *call: backend)
    model = nn.Linear(2, 1)
    run = unigrad.checkpoint(lambda x: model(x), blocks=[model] if blocks == "model" else blocks)
    x = Tensor(np.ones((1, 2), "float32"))
    if blocks is None:
        with pytest.raises(unigrad.UnsupportedError, match="captured leaf tensors"):
            run(x)
    else:
        assert run(x).shape == (1, 1)
