"""Files of dtypes that NumPy has only with ml_dtypes, read in a process that has not used them yet (clauses B5, B6, D2)."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import unigrad
from unigrad.errors import UnsupportedError

PROGRAM = """
    import sys
    import torch
    from torch import nn
    import unigrad

    def made(dtype):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        model.register_buffer("scales", torch.tensor([0.5, 1.5]))
        if dtype == torch.bfloat16:
            model.to(dtype)
        else:
            model.scales = model.scales.to(dtype)
        return model

    action, path, dtype = sys.argv[1], sys.argv[2], getattr(torch, sys.argv[3])
    model = made(dtype)
    optimizer = unigrad.Optimizer(model, lambda parameters: torch.optim.AdamW(parameters, 0.1))

    def step():
        with unigrad.GradientCollector(model) as collector:
            collector.backward(model(torch.ones(4, 3, dtype=model.weight.dtype)).float().square().sum())
            collector.apply(optimizer)

    if action == "save":
        step()
        unigrad.save_training(path, model, optimizer)
    else:
        assert "ml_dtypes" not in sys.modules
        unigrad.load_training(path, model, optimizer)
    step()
    print([bytes(tensor.detach().view(torch.uint8).flatten().tolist()).hex() for tensor in (model.weight, model.scales)])
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_training_run_goes_on_in_a_new_process(dtype, tmp_path):
    """D2: the process that reads has not made an array of such a dtype before."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    path = tmp_path / "run.safetensors"
    saved, loaded = (
        subprocess.run(
            [sys.executable, program, action, path, dtype], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        for action in ("save", "load")
    )
    assert saved.returncode == 0, saved.stderr
    assert loaded.returncode == 0, loaded.stderr
    assert saved.stdout == loaded.stdout


def test_what_no_such_file_holds_is_refused_when_saving(tmp_path):
    """B6: nothing is written."""
    model = nn.Linear(2, 2)
    model.register_buffer("wide", torch.ones(2, dtype=torch.complex128))
    with pytest.raises(UnsupportedError, match="complex128"):
        unigrad.wrap(model).save(tmp_path / "state.safetensors")
    assert list(tmp_path.iterdir()) == []
