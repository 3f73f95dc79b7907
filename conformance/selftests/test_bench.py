"""`unigrad bench`: its structural figures are within their bounds, its table and JSON say the same, mistakes are told."""

import json
import subprocess
import sys

import pytest

BACKENDS = ("numpy", "torch")


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


@pytest.mark.parametrize("backend", BACKENDS)
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
