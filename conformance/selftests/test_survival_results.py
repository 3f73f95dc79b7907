"""Results that another version, a broken disk or somebody hostile has written: a clear error, and nothing else happens."""

import hashlib
import io
import json
import os
import pickle
import re
import zipfile

import numpy as np
import pytest
from unigrad_conformance.observations import observe
from unigrad_conformance.results import FORMAT, Result, ResultsError, Session, begin, finish, load

OBSERVED = observe("x", np.arange(6.0).reshape(2, 3), terms=1, reason="r"), observe("names", {"a", "b"})
SESSION = Session(
    "fake",
    python="3.11.7",
    framework="fakeframework",
    guarantees={"THREADS": "kept"},
    capabilities=("CAPTURES",),
    results=(Result("test_a.py::test_a", "passed", ("G1",), (53,), observations=OBSERVED),),
)


@pytest.fixture
def folder(tmp_path):
    begin(tmp_path, "fake")
    finish(tmp_path, SESSION)
    return tmp_path


def rewrite(folder, change):
    """Change the data in the JSON file."""
    data = json.loads((folder / "fake.json").read_text())
    change(data)
    (folder / "fake.json").write_text(json.dumps(data))


def put_arrays(folder, content):
    """Put other bytes in place of the arrays, as somebody who also knows of the digest."""
    (folder / "fake.npz").write_bytes(content)
    rewrite(folder, lambda data: data.update(arrays_sha256=hashlib.sha256(content).hexdigest()))


def test_what_is_written_is_read(folder):
    (session,) = load(folder)
    (result,) = session.results
    (array, names) = result.observations
    np.testing.assert_array_equal(array.array, OBSERVED[0].array, strict=True)
    assert names == OBSERVED[1]
    assert (session.guarantees, session.capabilities, result.cases) == ({"THREADS": "kept"}, ("CAPTURES",), (53,))


@pytest.mark.parametrize("version", [1, FORMAT + 1, "2", None, [2], 2.5, {"a": 1}])
def test_results_of_another_version_are_told(folder, version):
    rewrite(folder, lambda data: data.update(format=version))
    with pytest.raises(ResultsError, match=re.escape(f"has format {version!r}; this unigrad reads format {FORMAT}")):
        load(folder)


def test_every_cut_of_the_files_is_told(folder):
    for name in ("fake.json", "fake.npz"):
        whole = (folder / name).read_bytes()
        for size in range(0, len(whole) - 1, 7):
            (folder / name).write_bytes(whole[:size])
            with pytest.raises(ResultsError, match=re.escape(str(folder / name))):
                load(folder)
        (folder / name).write_bytes(whole)
    assert load(folder)


SPOILT = ("x", 7, -1, None, [], {}, [1], ["x", 2], {"a": 1}, True, 1e999, [[]], "../../x")


def paths(data, path=()):
    """Every place in JSON data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def at(data, path):
    for key in path:
        data = data[key]
    return data


def test_any_value_in_any_place_is_read_as_what_it_is_or_told(folder):
    """What is read can be reported: no other error comes later."""
    from unigrad_conformance.junit import junit_xml
    from unigrad_conformance.report import report_text

    original = json.loads((folder / "fake.json").read_text())
    told = 0
    for path in list(paths(original)):
        for value in SPOILT if path else ():
            data = json.loads(json.dumps(original))
            at(data, path[:-1])[path[-1]] = value
            (folder / "fake.json").write_text(json.dumps(data))
            try:
                sessions = load(folder)
            except ResultsError:
                told += 1
                continue
            report_text([*sessions, Session("numpy", results=SESSION.results)])
            junit_xml(sessions)
    assert told > 300


@pytest.mark.parametrize("change", ["missing", "more"])
def test_every_entry_is_there_and_no_other(folder, change):
    original = json.loads((folder / "fake.json").read_text())
    for path in list(paths(original)):
        if path and isinstance(path[-1], str) and path[-2:-1] not in (("guarantees",), ("exact",)):
            data = json.loads(json.dumps(original))
            del at(data, path[:-1])[path[-1]]
            if change == "more":
                at(data, path[:-1])[f"{path[-1]}_"] = 1
            (folder / "fake.json").write_text(json.dumps(data))
            with pytest.raises(ResultsError):
                load(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 100_000, "cannot be read as results", id="deep"),
        pytest.param('{"format": ' + "9" * 10_000 + "}", "cannot be read as results", id="long-number"),
        pytest.param("\0" * 100, "cannot be read as results", id="zeros"),
        pytest.param("null", "is not a file of results", id="null"),
        pytest.param('{"a": 1}', "is not a file of results", id="other-data"),
    ],
)
def test_hostile_json_is_told(folder, text, message):
    (folder / "fake.json").write_text(text)
    with pytest.raises(ResultsError, match=message):
        load(folder)


def test_bytes_that_are_no_text_are_told(folder):
    (folder / "fake.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ResultsError, match="cannot be read as results"):
        load(folder)


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def archive(**members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return packed.getvalue()


def array_bytes(array, **options):
    packed = io.BytesIO()
    np.save(packed, array, **options)
    return packed.getvalue()


def huge_array():
    """A header that asks for eight terabytes, and no data."""
    packed = io.BytesIO()
    np.lib.format.write_array_header_1_0(packed, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    return packed.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"PK\x03\x04 and no more", id="no-archive"),
        pytest.param(pickle.dumps(Harm()), id="pickle"),
        pytest.param(array_bytes(np.array([Harm()], dtype=object), allow_pickle=True), id="pickled-array"),
        pytest.param(archive(a=array_bytes(np.array([Harm()], dtype=object), allow_pickle=True)), id="pickled-member"),
        pytest.param(archive(a=huge_array()), id="huge-header"),
        pytest.param(archive(a=b"\x93NUMPY\x01\x00\x10\x00__import__('os')"), id="code-in-header"),
        pytest.param(archive(other=array_bytes(np.ones(3))), id="other-names"),
        pytest.param(archive(a=b"no array"), id="no-array"),
        pytest.param(archive(**{"test_a.py::test_a/x": array_bytes(np.array(["text"]))}), id="text-array"),
        pytest.param(archive(**{"test_a.py::test_a/x": array_bytes(np.zeros(2, "f8,i4"))}), id="records"),
    ],
)
def test_hostile_arrays_are_told_and_nothing_in_them_is_run(folder, monkeypatch, content):
    monkeypatch.chdir(folder)
    put_arrays(folder, content)
    with pytest.raises(ResultsError):
        load(folder)
    assert not (folder / "harm").exists()


def test_an_archive_that_unpacks_to_too_much_is_told_before_it_is_unpacked(folder):
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("a.npy", "w", force_zip64=True) as member,
    ):
        member.write(array_bytes(np.zeros(0)))
        for _ in range(80):
            member.write(bytes(2**24))
    assert len(packed.getvalue()) < 2**21
    put_arrays(folder, packed.getvalue())
    with pytest.raises(ResultsError, match="unpacks to more than 1024 MiB"):
        load(folder)


def test_every_flipped_byte_of_the_arrays_is_told(folder):
    whole = (folder / "fake.npz").read_bytes()
    for place in range(0, len(whole), 3):
        (folder / "fake.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ResultsError, match="is not the file that was written"):
            load(folder)


def test_what_is_no_file_is_passed_over(folder):
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    assert [session.backend for session in load(folder)] == ["fake"]


@pytest.mark.parametrize("name", ["other", "../fake", "a b"])
def test_results_bear_the_name_of_their_file(folder, name):
    rewrite(folder, lambda data: data.update(backend=name))
    with pytest.raises(ResultsError, match="the backend is"):
        load(folder)


def test_a_hostile_text_in_results_moves_no_cursor(fake):
    fake.backend()
    fake.suite("def test_a(): assert False")
    fake.check("fake")

    def change(data):
        data["results"][0]["reason"] = "\x1b[2J\x1b]0;title\x07\x9b31m \udc9b"

    rewrite(fake.results, change)
    process = fake.run("report", str(fake.results))
    assert process.returncode == 0
    assert not re.search(r"[^\n\x20-\x7e]", process.stdout)
    assert r"\x1b[2J\x1b]0;title\x07\x9b31m \udc9b" in process.stdout


def test_a_folder_that_may_not_be_read_is_no_empty_one(folder, monkeypatch):
    """Whoever runs as root may read all, so the system's answer is made up."""

    def denied(*args):
        raise PermissionError(13, "Permission denied")

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, denied)
    with pytest.raises(ResultsError, match=r"cannot be read: Permission denied"):
        load(folder)
