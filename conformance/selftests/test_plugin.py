"""The plugin of the suite: what a test may do, and what each outcome is called (clause A6, design sections 3 and 11)."""

import numpy as np
import pytest
from unigrad_conformance.clauses import CLAUSES
from unigrad_conformance.results import load

from unigrad.protocols import Capability, Guarantee

SUITE = """
def test_passes(record, dtype, samples, backend):
    assert samples.__name__ == "fake_backend.samples"
    assert backend.spec.name == "fake"
    record("array", np.arange(6, dtype=dtype).reshape(2, 3), terms=3, reason="three terms")
    record("many", {"a": 0.5, "b": np.array([1, 2])}, terms=1, reason="one rounding")
    record("names", {"b", "a"})
    record("flag", np.bool_(True))

def test_fails():
    assert [1] == [2]

@pytest.mark.needs(Capability.SECOND_ORDER)
def test_undeclared_and_refuses():
    raise UnsupportedError("no")

@pytest.mark.needs(Capability.SECOND_ORDER)
def test_undeclared_but_works():
    pass

@pytest.mark.needs(Capability.SECOND_ORDER)
def test_undeclared_and_fails_otherwise():
    raise ValueError("not the right error")

@pytest.mark.needs(Capability.CAPTURES)
def test_declared_but_refuses():
    raise UnsupportedError("no")

@pytest.mark.needs(Capability.CAPTURES)
def test_declared_and_works():
    pass

def test_refuses_without_need():
    raise UnsupportedError("no")

@pytest.mark.dtypes("float64")
def test_dtype_refused(dtype):
    raise UnsupportedError(dtype)

@pytest.mark.dtypes("float64")
def test_dtype_works(dtype):
    pass

def test_no_sample():
    raise NoSampleError("no such layer")

def test_no_sample_of_a_guarantee(guarantee):
    raise NoSampleError("no hidden write")

@pytest.fixture
def unsampled():
    raise NoSampleError("in set-up")

def test_no_sample_in_fixture(unsampled):
    pass

def test_guarantee_declared(guarantee):
    assert guarantee(Guarantee.THREADS) == "kept"

def test_guarantee_undeclared(guarantee):
    guarantee(Guarantee.STALE_NATIVE)

def test_known():
    assert 1 == 2

def test_known_but_passes():
    pass

def test_known_without_sample():
    raise NoSampleError("no such layer")

def test_skips():
    pytest.skip("no reason is good enough")

def test_warns():
    warnings.warn("something", UserWarning)

@pytest.fixture
def breaks_after():
    yield
    raise RuntimeError("in teardown")

def test_teardown(breaks_after):
    pass

def test_records_without_reason(record):
    record("x", 0.5, terms=1)

def test_records_twice(record):
    record("x", 1)
    record("x", 1)

@pytest.mark.parametrize("round", [1, 2])
def test_seeded(round):
    drawn = np.random.rand()
    assert drawn == vars(pytest).setdefault("drawn", drawn)

@pytest.mark.clause("C3", "C5")
@pytest.mark.case(53)
def test_named():
    pass
"""
KNOWN = "".join(
    f'["test_fake.py::{name}"]\nreason = "upstream adds wrongly"\nurl = "https://example.org/1"\n'
    for name in ("test_known", "test_known_but_passes", "test_known_without_sample")
)
EXPECTED = {
    "test_passes[float32]": ("passed", ""),
    "test_fails": ("failed", "assert [1] == [2]"),
    "test_undeclared_and_refuses": ("refused", "not declared"),
    "test_undeclared_but_works": ("failed", "works, but the capability is not declared"),
    "test_undeclared_and_fails_otherwise": ("failed", "not the right error"),
    "test_declared_but_refuses": ("failed", "UnsupportedError: no"),
    "test_declared_and_works": ("passed", ""),
    "test_refuses_without_need": ("failed", "UnsupportedError: no"),
    "test_dtype_refused[float64]": ("refused", "dtype float64: not declared"),
    "test_dtype_works[float64]": ("failed", "works, but the capability is not declared"),
    "test_no_sample": ("no sample", "no such layer"),
    "test_no_sample_of_a_guarantee": ("no sample", "no hidden write"),
    "test_no_sample_in_fixture": ("no sample", "in set-up"),
    "test_guarantee_declared": ("passed", ""),
    "test_guarantee_undeclared": ("failed", "declares nothing for Guarantee.STALE_NATIVE"),
    "test_known": ("known failure", "upstream adds wrongly"),
    "test_known_but_passes": ("failed", "remove the entry"),
    "test_known_without_sample": ("no sample", "no such layer"),
    "test_skips": ("failed", "no reason is good enough"),
    "test_warns": ("failed", "UserWarning: something"),
    "test_teardown": ("failed", "in teardown"),
    "test_records_without_reason": ("failed", "needs reason=..."),
    "test_records_twice": ("failed", "already recorded"),
    "test_seeded[1]": ("passed", ""),
    "test_seeded[2]": ("passed", ""),
    "test_named": ("passed", ""),
}


@pytest.fixture(scope="module")
def checked(module_fake):
    module_fake.backend(known=KNOWN)
    module_fake.suite(SUITE)
    module_fake.process = module_fake.check("fake")
    return module_fake


def test_a6_every_test_is_judged(checked):
    assert set(checked.outcomes()) == set(EXPECTED)
    assert checked.process.returncode == 1


@pytest.mark.parametrize("test", EXPECTED)
def test_a6_outcome(checked, test):
    outcome, reason = EXPECTED[test]
    result = checked.outcomes()[test]
    assert result["outcome"] == outcome
    assert reason in result["reason"]


def test_only_a_mandatory_clause_needs_a_sample(checked):
    outcomes = checked.outcomes()
    assert outcomes["test_no_sample"]["mandatory"]
    assert not outcomes["test_no_sample_of_a_guarantee"]["mandatory"]
    assert "NO SAMPLE: fake, test_fake.py::test_no_sample (G1)" in checked.process.stdout
    assert "NO SAMPLE: fake, test_fake.py::test_no_sample_of_a_guarantee" not in checked.process.stdout


def test_known_failures_are_reported_with_reason_and_url(checked):
    line = "known failure: fake, test_fake.py::test_known: upstream adds wrongly (https://example.org/1)"
    assert line in checked.process.stdout


def test_clauses_and_cases_are_kept(checked):
    result = checked.outcomes()["test_named"]
    assert set(result["clauses"]) == {"C3", "C5", "G1"}
    assert result["cases"] == [53]


def test_x1_observations_are_kept_with_their_bounds(checked):
    results = {result.id: result for result in load(checked.results)[0].results}
    observed = {one.name: one for one in results["test_fake.py::test_passes[float32]"].observations}
    assert set(observed) == {"array", "many/names", "many/a", "many/b", "names", "flag"}
    np.testing.assert_array_equal(observed["array"].array, np.arange(6, dtype=np.float32).reshape(2, 3), strict=True)
    assert observed["array"].bound == 4 * 2.0**-23 * 3 * 5
    assert observed["many/a"].bound == 4 * 2.0**-52 * 0.5
    assert observed["many/b"].bound == 0
    assert observed["names"].exact == {"set": ["a", "b"]}
    assert observed["flag"].exact is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("@pytest.mark.clause('G99')\ndef test_a(): pass", "unknown clause 'G99'", id="unknown-clause"),
        pytest.param("del pytestmark\ndef test_a(): pass", "names no clause", id="no-clause"),
        pytest.param("@pytest.mark.needs('x')\ndef test_a(): pass", "takes members of Capability", id="wrong-need"),
        pytest.param("import absent_module", "No module named 'absent_module'", id="import-error"),
        pytest.param("@pytest.mark.claus('G1')\ndef test_a(): pass", "'claus' not found", id="misspelt-mark"),
    ],
)
def test_a_faulty_suite_is_an_error(fake, text, message):
    fake.backend()
    fake.suite(text)
    process = fake.check("fake")
    assert process.returncode == 1
    assert message in process.stdout
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("known", "message"),
    [
        pytest.param('["test_fake.py::gone"]\nreason = "r"\nurl = "u"', "do not exist: test_fake.py::gone", id="stale"),
        pytest.param('["test_fake.py::test_a"]\nreason = "r"', "needs exactly a reason and a url", id="no-url"),
        pytest.param("[unclosed", "is not a TOML file", id="no-toml"),
    ],
)
def test_a_faulty_list_of_known_failures_is_an_error(fake, known, message):
    fake.backend(known=known)
    fake.suite("def test_a(): pass")
    process = fake.check("fake")
    assert process.returncode == 1
    assert message in process.stdout


def test_selection_of_an_id_is_exact_and_of_a_clause_whole(fake):
    fake.backend()
    fake.suite("def test_a(): pass\ndef test_a_b(): pass\n@pytest.mark.clause('G10')\ndef test_c(): pass")
    assert fake.check("fake", "-k", "test_fake.py::test_a").returncode == 0
    assert set(fake.outcomes()) == {"test_a"}
    assert fake.check("fake", "-k", "G10").returncode == 0
    assert set(fake.outcomes()) == {"test_c"}
    assert fake.check("fake", "-k", "test_a").returncode == 0
    assert set(fake.outcomes()) == {"test_a", "test_a_b"}


def test_every_capability_and_guarantee_governs_a_clause():
    governed = {which for clause in CLAUSES.values() if clause.name != "A6" for which in clause.governed}
    assert governed == {*Capability, *Guarantee}
