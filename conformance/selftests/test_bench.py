"""`unigrad bench`: its structural figures are within their bounds, its table and JSON say the same, mistakes are told."""

import itertools
import json
import subprocess
import sys

import pytest

BACKENDS = ("numpy", "torch", "mindspore")
"""One that records always, one where a gradient is asked for, one in a collector only."""


def bench(*arguments):
    command = [sys.executable, "-m", "unigrad_conformance.cli", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_kept_by_a_checkpoint(backend, tmp_path):
    done = bench(backend, "--only", "kept_by", "--pairs", "2", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())["backends"][backend]["figures"]
    assert [figure["kind"] for figure in figures] == ["kept bytes"]
    assert 0 < figures[0]["median"] <= figures[0]["bound"] == 0.10
    assert f"{figures[0]['median']:.3f}" in done.stdout


@pytest.mark.parametrize("backend", ["numpy", "torch"])  # in this process
def test_a_bound_that_is_missed_is_exit_code_1(backend, monkeypatch, capsys):
    from unigrad_conformance import bench as module
    from unigrad_conformance.bench_cases import Figure

    def missed(setting):
        return [Figure("this / that", "time", 2.0, 1.0, 3.0, bound=1.5), Figure("ours / theirs", "time", 2.0, 1.0, 3.0)]

    monkeypatch.setattr(module, "CASES", (missed,))
    code, data = module.main([backend], pairs=2, warmups=0)
    assert code == 1
    assert [figure["ok"] for figure in data["backends"][backend]["figures"]] == [False, None]
    assert "MISSED" in capsys.readouterr().out


def test_what_takes_long_has_fewer_pairs_and_its_figure_says_how_many():
    from unigrad_conformance.bench_cases import LEAST, Setting

    calls = []
    setting = Setting(backend=None, pairs=60, warmups=10, budget=0.0, sample=0.0)
    figure = setting.compare("ours / theirs", lambda: calls.append("ours"), lambda: calls.append("theirs"), None)
    assert figure.pairs == LEAST < 60
    counted = calls[-2 * LEAST :]
    assert calls.count("ours") == calls.count("theirs") == LEAST + 1  # one to warm up
    assert counted[::2] == ["theirs", "ours"] * (LEAST // 2)  # who is first alternates
    patient = Setting(backend=None, pairs=9, warmups=0, budget=60.0)
    assert patient.compare("ours / theirs", lambda: None, lambda: None, None).pairs == 9


def test_a_short_step_is_run_several_times_in_a_sample():
    from unigrad_conformance.bench_cases import Setting

    calls = []
    setting = Setting(backend=None, pairs=1, warmups=3, sample=1e-3)
    setting.compare("ours / theirs", lambda: calls.append("ours"), lambda: calls.append("theirs"), None)
    runs = [(name, len(list(same))) for name, same in itertools.groupby(calls[6:])]
    assert [name for name, _ in runs] == ["theirs", "ours"]
    assert runs[0][1] == runs[1][1] > 1


def test_a_peak_has_a_row_for_each_number_of_inter_op_threads(monkeypatch):
    from unigrad_conformance import bench_peak, bench_regions
    from unigrad_conformance.bench_cases import Setting

    class Native:
        @staticmethod
        def threads(count):
            return {"COUNT": str(count)}

    class Backend:
        class spec:
            name = "some"

    peaks = {("ours", 1): (1, 1), ("theirs", 1): (2, 2), ("ours", 2): (3, 3), ("theirs", 2): (4, 4)}
    monkeypatch.setattr(bench_peak, "measure", lambda backend, case, count: peaks[case, count])
    monkeypatch.setattr(Setting, "native", Native)
    rows = bench_regions._peaks(Setting(Backend, 2, 0), "ours / theirs", "ours", "theirs", 0.6)
    assert [(row.what, row.median, row.ok) for row in rows] == [
        ("ours / theirs, inter-op threads: 1", 0.5, True),
        ("ours / theirs, inter-op threads: 2", 0.75, False),
    ]


def test_a_process_that_fails_is_shown(capfd):
    from unigrad_conformance.bench_runs import last_lines

    with pytest.raises(subprocess.CalledProcessError):
        last_lines([["unigrad_conformance.bench_peak", "no-such-backend", "deep"]], {})
    assert "no-such-backend" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no-such-backend",), "no backend named 'no-such-backend'"),
        (("numpy", "--pairs", "0"), "--pairs needs at least 2"),
        (("numpy", "--json", "/no/such/folder/out.json"), "cannot write the file"),
        (("numpy", "--only", "no-such-case"), "nothing was measured"),
    ],
    ids=["unknown-backend", "no-pairs", "unwritable", "no-case"],
)
def test_mistakes(arguments, words):
    done = bench(*arguments)
    assert done.returncode == 2
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
