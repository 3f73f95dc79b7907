"""The programs docs/examples/native_*.py do, bit for bit, what the same loops in plain torch do (clause G18)."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
cross_entropy = nn.functional.cross_entropy


@pytest.fixture
def program(monkeypatch):
    """Import an example as the program beside its helper."""
    pytest.importorskip("sklearn", reason="scikit-learn has the images of the examples")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module
    for name in [name for name in sys.modules if name.startswith("native_")]:
        del sys.modules[name]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def test_the_scaler_skips_the_same_steps_and_ends_with_the_same_bits(program):
    digits = program("native_digits")
    plain = digits.classifier()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.2, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    for images, labels in digits.batches(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(plain(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    model, own, skipped = program("native_grad_scaler").train(epochs=2)
    assert skipped > 0
    assert own.state_dict() == scaler.state_dict()
    assert same(model, plain)


@pytest.mark.parametrize("by_torch", [True, False], ids=["by-torch", "by-the-collector"])
def test_clipped_steps(program, by_torch):
    digits, clip = program("native_digits"), program("native_clip")
    plain = digits.classifier()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for images, labels in digits.batches(1):
        optimizer.zero_grad()
        cross_entropy(plain(images), labels).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), clip.MAXIMUM)
        optimizer.step()
    model, clipped = clip.train(epochs=1, by_torch=by_torch)
    assert clipped == digits.STEPS_PER_EPOCH
    if by_torch:
        assert same(model, plain)
        return
    # torch adds 1e-6 to a norm above 0.25, so a step of at most 0.5 * 0.25 is shorter by 4e-6 of itself, 18 times; doubled, since
    # a gradient is taken where the weights already differ
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2 * 18 * 0.125 * 4e-6)


def test_a_head_that_comes_late_follows_the_schedule(program):
    digits, example = program("native_digits"), program("native_schedule")
    plain, head = digits.classifier(), nn.Linear(64, 10)
    optimizer = torch.optim.SGD([*plain.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, max_lr=0.3, total_steps=example.STEPS)
    for step, (images, labels) in enumerate(digits.batches(example.EPOCHS)):
        optimizer.zero_grad()
        example.loss_of(plain, head, images, labels, both=step >= example.STEPS // 2).backward()
        optimizer.step()
        schedule.step()
    model, other, made = example.train()
    assert same(model, plain)
    assert same(other, head)
    assert made.schedule.state_dict().items() >= {"last_epoch": example.STEPS}.items()
    assert made.native.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recomputed"])
def test_autocast_in_bfloat16(program, recompute):
    digits = program("native_digits")
    twins = []
    for enabled in (True, False):
        plain = digits.classifier()
        optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
        for images, labels in digits.batches(1):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = cross_entropy(plain(images), labels)
            loss.backward()
            optimizer.step()
        twins.append(plain)
    model, kinds = program("native_autocast").train(epochs=1, recompute=recompute)
    assert kinds == {torch.float32}
    assert same(model, twins[0])
    assert not same(model, twins[1]), "autocast makes a difference here"
