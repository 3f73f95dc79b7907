"""Every kind of sample layer: its values, its formula, an input off its kinks, and its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unigrad_conformance.suite import layer_formulas as formulas
from unigrad_conformance.suite.problems import array

__all__ = ["LAYER_CASES", "LayerCase"]


@dataclass(frozen=True)
class LayerCase:
    """One layer on one input.

    Parameters
    ----------
    kind, config
        Arguments of ``samples.layer``.
    formula
        ``formula(x, *parameters)`` in NumPy.
    x
        Input.
    terms
        Bound of outputs and gradients, in roundings relative to the largest value.
    reason
        Why that many.
    parameters
        Names of the block's parameters, in the order of the formula's arguments, and their values.
    label
        Set where a kind has several cases.
    training
        Mode.
    """

    kind: str
    config: Mapping[str, Any]
    formula: Callable[..., Any]
    x: np.ndarray[Any, Any]
    terms: int
    reason: str
    parameters: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    label: str = ""
    training: bool = True

    @property
    def id(self) -> str:
        """Return the id of the case in the names of tests."""
        return f"{self.kind}-{self.label}" if self.label else self.kind


def _small(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    return array(*shape, seed=seed) / np.float32(2)


def _valued() -> list[LayerCase]:
    """Return the layers to which samples give weights."""
    images = array(2, 2, 5, 6, seed=1)
    cases = []
    for label in ("", "no bias"):
        values = {"weight": _small(3, 4, seed=2), **({} if label else {"bias": array(3, seed=3)})}
        config = {"weight": values["weight"], "bias": values.get("bias")}
        reason = "sums of 4 products forward, of 5 samples backward"
        cases.append(LayerCase("dense", config, formulas.dense, array(5, 4, seed=4), 10, reason, values, label))
    for stride, padding in ((1, 0), (2, 1), (2, 0)):
        weight, bias = _small(3, 2, 3, 2, seed=5), array(3, seed=6)
        cases.append(
            LayerCase(
                "conv2d",
                {"weight": weight, "bias": bias, "stride": stride, "padding": padding},
                lambda x, w, b, s=stride, p=padding: formulas.conv2d(x, w, b, s, p),
                images,
                84,
                "12 products forward; 2 images of up to 42 places backward",
                {"weight": weight, "bias": bias},
                f"stride {stride} padding {padding}",
            )
        )
        weight = _small(2, 3, 3, 2, seed=7)
        cases.append(
            LayerCase(
                "conv_transpose2d",
                {"weight": weight, "bias": bias, "stride": stride, "padding": padding},
                lambda x, w, b, s=stride, p=padding: formulas.conv_transpose2d(x, w, b, s, p),
                images,
                240,
                "12 products forward; 2 images of up to 120 places backward",
                {"weight": weight, "bias": bias},
                f"stride {stride} padding {padding}",
            )
        )
    return [*cases, *_recurrent()]


def _recurrent() -> list[LayerCase]:
    cases = []
    for kind, gates, formula in (("lstm", 4, formulas.lstm), ("gru", 3, formulas.gru)):
        values = {
            "weight_ih_l0": _small(gates * 2, 3, seed=8),
            "weight_hh_l0": _small(gates * 2, 2, seed=9),
            "bias_ih_l0": _small(gates * 2, seed=10),
            "bias_hh_l0": _small(gates * 2, seed=11),
        }
        names = ("input_weight", "hidden_weight", "input_bias", "hidden_bias")
        cases.append(
            LayerCase(
                kind,
                dict(zip(names, values.values(), strict=True)),
                formula,
                array(2, 4, 3, seed=12),
                80,
                "4 steps of about 10 roundings, there and back, summed over 2 samples",
                values,
            )
        )
    return cases


def _plain() -> list[LayerCase]:
    """Return the layers without values."""
    # No two elements of a window are nearer than a tenth, so that rounding moves no maximum.
    places = (np.random.default_rng(13).permutation(60).reshape(1, 2, 5, 6) / 10 - 3).astype("float32")
    off_kinks = np.array([[-4.5, -3.1, -1.7, -0.4], [0.3, 1.9, 2.8, 3.3]], "float32")
    function = "a function of one element, right to a few units in the last place, as is its derivative"
    moves = "values only move"
    return [
        LayerCase("max_pool2d", {"size": 2}, lambda x: formulas.max_pool2d(x, 2), places, 0, moves),
        LayerCase("flatten", {}, lambda x: x.reshape(len(x), -1), array(2, 2, 3, 2, seed=14), 0, moves),
        LayerCase("relu", {}, lambda x: np.maximum(x, 0), off_kinks, 0, "exact"),
        LayerCase("tanh", {}, np.tanh, array(2, 4, seed=15), 8, function),
        LayerCase("gelu", {}, formulas.gelu, array(2, 4, seed=16), 8, function),
        LayerCase("hardswish", {}, formulas.hardswish, off_kinks, 8, function),
        LayerCase(
            "dropout", {"rate": 0.5}, lambda x: x, array(2, 4, seed=17), 0, "exact", label="eval", training=False
        ),
        LayerCase(
            "dropout", {"rate": 0.0}, lambda x: x, array(2, 4, seed=17), 1, "a product with one", label="rate zero"
        ),
    ]


def _norms() -> list[LayerCase]:
    values = {"weight": array(3, seed=18), "bias": array(3, seed=19)}
    cases = []
    for label, x in (("vectors", array(6, 3, seed=20)), ("images", array(2, 3, 2, 3, seed=21))):
        cases.append(
            LayerCase(
                "batch_norm",
                {"channels": 3, "momentum": 0.3, "epsilon": 1e-3, "affine": True},
                lambda x, w, b: formulas.batch_norm(x, w, b, 1e-3),
                x,
                60,
                "means and variances of up to 12 values, three sums of them backward",
                values,
                f"train {label}",
            )
        )
        cases.append(
            LayerCase(
                "batch_norm",
                {"channels": 3, "momentum": 0.3, "epsilon": 1e-3, "affine": True},
                # New running statistics are zero and one.
                lambda x, w, b: formulas.batch_norm(x, w, b, 1e-3, (np.zeros(3), np.ones(3))),
                x,
                24,
                "sums over up to 12 values backward",
                values,
                f"eval {label}",
                training=False,
            )
        )
    cases.append(
        LayerCase(
            "layer_norm",
            {"features": 3, "epsilon": 1e-3},
            lambda x, w, b: formulas.layer_norm(x, w, b, 1e-3),
            array(5, 3, seed=22),
            40,
            "means and variances of 3 values, sums of them and over 5 samples backward",
            values,
        )
    )
    return cases


LAYER_CASES = [*_valued(), *_plain(), *_norms()]
"""All cases with a floating input and values known to the test; embedding, lazy dense and attention are tested by themselves."""
