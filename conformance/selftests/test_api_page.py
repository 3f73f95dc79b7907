"""The page of public names holds each of them, no member that does not exist, and programs that run (design section 13)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import unigrad

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
ROWS = [match[1] for match in re.finditer(r"^\| (?:&nbsp;)*(.*?) \|", PAGE, re.MULTILINE)]
NAMED = {name for row in ROWS for name in re.findall(r"`(\w+)", row)} | set(
    re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
)


@pytest.mark.parametrize("name", [*unigrad.__all__])
def test_every_public_name_stands_in_it(name):
    if name == "Usage":  # in a sentence, since its fields are no members with a duty of their own
        assert "`Usage` has" in PAGE
    else:
        assert name in NAMED


@pytest.mark.parametrize(
    "kind", [unigrad.Block, unigrad.GradientCollector, unigrad.Optimizer], ids=lambda kind: kind.__name__
)
def test_members_that_it_names_exist(kind):
    section = PAGE.partition(f"## {kind.__name__}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    members = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert len(members) >= 4
    assigned = {"native", "backend"}  # in __init__, so not of the class
    assert members - assigned <= set(dir(kind))


def test_its_programs_run(tmp_path):
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
