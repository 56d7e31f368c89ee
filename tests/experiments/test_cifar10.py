from __future__ import annotations

import copyreg
import functools
import hashlib
import http.server
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gossip
from experiments import data
from experiments.data import cifar10, download, safe_pickle
from gossip.errors import UsageError

N = 6  # images per batch
OFFICIAL_URL = cifar10.URL


def batch(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "batch_label": b"a batch",
        "labels": rng.integers(0, 10, N).tolist(),
        "data": rng.integers(0, 256, (N, 3072), dtype=np.uint8),
        "filenames": [b"image.png"] * N,
    }


def pickled(content: dict[str, Any], protocol: int = 4) -> bytes:
    return pickle.dumps({key.encode(): value for key, value in content.items()}, protocol)


def pickled_by_python_2(content: dict[str, Any]) -> bytes:
    """`content` in the opcodes with which Python 2's cPickle and numpy 1 wrote the official files."""

    def text(value: bytes) -> bytes:
        return pickle.BINSTRING + len(value).to_bytes(4, "little") + value

    def number(value: int) -> bytes:
        return pickle.BININT + value.to_bytes(4, "little", signed=True)

    def items(values: list[Any]) -> bytes:
        return pickle.EMPTY_LIST + pickle.MARK + b"".join(map(write, values)) + pickle.APPENDS

    def array(value: np.ndarray) -> bytes:
        shape = b"".join(map(number, value.shape)) + pickle.TUPLE2
        plain = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + pickle.TUPLE1
        new = plain + text(b"b") + pickle.TUPLE3 + pickle.REDUCE
        dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + pickle.TUPLE3 + pickle.REDUCE
        flags = pickle.MARK + number(3) + text(b"|") + pickle.NONE * 3
        dtype += flags + number(-1) + number(-1) + number(0) + pickle.TUPLE + pickle.BUILD
        state = (
            pickle.MARK + number(1) + shape + dtype + pickle.NEWFALSE + text(value.tobytes()) + pickle.TUPLE
        )
        return new + state + pickle.BUILD

    def write(value: Any) -> bytes:
        writers: dict[type, Callable[[Any], bytes]] = {
            bytes: text,
            int: number,
            list: items,
            np.ndarray: array,
        }
        return writers[type(value)](value)

    pairs = b"".join(text(key.encode()) + write(value) for key, value in content.items())
    return b"\x80\x02" + pickle.EMPTY_DICT + pickle.MARK + pairs + pickle.SETITEMS + pickle.STOP


def files() -> dict[str, bytes]:
    return {name: pickled(batch(i)) for i, name in enumerate((*cifar10.TRAIN, cifar10.TEST))}


def write_folder(root: Path, contents: dict[str, bytes]) -> Path:
    folder = root / cifar10.FOLDER
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def archive(contents: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in reversed(contents.items()):
            member = tarfile.TarInfo(f"{cifar10.FOLDER}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def check(dataset: data.Dataset) -> None:
    """`dataset` holds what `files` wrote, in order."""
    batches = [batch(i) for i in range(6)]
    train = np.concatenate([b["data"] for b in batches[:5]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(dataset.train_x.numpy(), train)
    assert dataset.train_y.tolist() == [k for b in batches[:5] for k in b["labels"]]
    assert np.array_equal(dataset.test_x.numpy(), batches[5]["data"].reshape(-1, 3, 32, 32))
    assert dataset.test_y.tolist() == batches[5]["labels"]
    assert len(dataset.classes) == 10 and dataset.mean.shape == dataset.std.shape == (3,)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing answers at the official address."""
    monkeypatch.setattr(cifar10, "URL", "http://127.0.0.1:9/cifar-10-python.tar.gz")


# -- files that are there ----------------------------------------------------------------------------


def test_a_copy_is_told_from_what_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = files()
    write_folder(tmp_path, contents)
    assert data.load("cifar10", str(tmp_path)).caveat.endswith(f"a copy: {', '.join(contents)} differ")
    published = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(cifar10, "PUBLISHED", published)
    assert data.load("cifar10", str(tmp_path)).caveat == ""
    monkeypatch.setitem(published, "data_batch_3", "0" * 32)
    assert data.load("cifar10", str(tmp_path)).caveat.endswith("a copy: data_batch_3 differ")


def test_reads_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, files())
    check(data.load("cifar10", str(tmp_path)))
    check(data.load("cifar10", str(folder)))


def test_reads_the_archive_and_unpacks_it_for_the_other_ranks(tmp_path: Path) -> None:
    (tmp_path / cifar10.ARCHIVE).write_bytes(archive(files()))
    check(data.load("cifar10", str(tmp_path)))
    assert sorted(p.name for p in tmp_path.iterdir()) == [cifar10.FOLDER, cifar10.ARCHIVE]
    assert {p.name: p.read_bytes() for p in (tmp_path / cifar10.FOLDER).iterdir()} == files()


def test_reads_an_archive_that_cannot_be_unpacked(tmp_path: Path) -> None:
    write_folder(tmp_path, {"data_batch_1": b""})  # in the way, and incomplete
    (tmp_path / cifar10.ARCHIVE).write_bytes(archive(files()))
    check(data.load("cifar10", str(tmp_path)))


def test_archive_members_elsewhere_are_not_touched(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        evil = tarfile.TarInfo("../evil")
        evil.size = 4
        tar.addfile(evil, io.BytesIO(b"evil"))
        link = tarfile.TarInfo(f"{cifar10.FOLDER}/data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for name, content in files().items():
            member = tarfile.TarInfo(f"{cifar10.FOLDER}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (root / cifar10.ARCHIVE).write_bytes(file.getvalue())
    check(data.load("cifar10", str(root)))
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_virtual_nodes_share_one_copy(tmp_path: Path) -> None:
    write_folder(tmp_path, files())
    first, *others = gossip.launch(lambda: data.load("cifar10", str(tmp_path), gossip.world()), 3)
    assert all(other is first for other in others)


@pytest.mark.parametrize("protocol", range(6))
def test_python_3_batches_load(protocol: int) -> None:
    expected = batch(0)
    for content in (pickled(expected, protocol), pickle.dumps(expected, protocol)):  # keys as bytes, as text
        found = safe_pickle.load(content)
        assert np.array_equal(found.pop("data"), expected["data"])
        assert {key: found[key] for key in found} == {k: v for k, v in expected.items() if k != "data"}


def test_python_2_batches_load() -> None:
    expected = batch(0)
    content = pickled_by_python_2(expected)
    well_formed = pickle.loads(content, encoding="bytes")
    assert np.array_equal(well_formed[b"data"], expected["data"])
    found = safe_pickle.load(content)
    assert np.array_equal(found.pop("data"), expected.pop("data"))
    assert found == expected


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", ">f8", "?"])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_of_any_plain_type_and_order_load(dtype: str, order: Any, protocol: int) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 5, np.dtype(dtype), order=order)
    found = safe_pickle.load(pickle.dumps({"a": array}, protocol))["a"]
    assert found.dtype == array.dtype and np.array_equal(found, array)


# -- files that are not what they seem ---------------------------------------------------------------


class Attack:
    """Pickles to a call of `call`."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.args


ATTACKS = {
    "command": lambda path: Attack(os.mkdir, path),
    "eval": lambda path: Attack(eval, f"__import__('os').mkdir({path!r})"),
    "numpy": lambda path: Attack(np.save, path, np.zeros(1)),
    "partial": lambda path: functools.partial(os.mkdir, path),
    "import": lambda path: Attack(__import__, "this"),
    "attribute": lambda path: Attack(getattr, "text", "format"),
    "copyreg": lambda path: Attack(copyreg._reconstructor, dict, object, None),  # type: ignore[attr-defined]
    "objects": lambda path: np.array([Attack(os.mkdir, path)], object),
    "codec": lambda path: Attack(__import__("codecs").encode, "text", "rot13"),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_malicious_pickle_is_refused_and_nothing_runs(name: str, protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "owned"
    contents = files()
    contents["data_batch_3"] = pickled(batch(2) | {"more": ATTACKS[name](str(target))}, protocol)
    write_folder(tmp_path, contents)
    with pytest.raises(UsageError, match="data_batch_3"):
        data.load("cifar10", str(tmp_path))
    assert not target.exists()


def test_the_refusal_names_what_was_wanted() -> None:
    with pytest.raises(pickle.UnpicklingError, match=f"{os.mkdir.__module__}.mkdir"):
        safe_pickle.load(pickle.dumps({"a": Attack(os.mkdir, "x")}))


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_a_truncated_batch_is_named(share: float, tmp_path: Path) -> None:
    contents = files()
    contents["data_batch_2"] = contents["data_batch_2"][: int(share * len(contents["data_batch_2"]))]
    write_folder(tmp_path, contents)
    with pytest.raises(UsageError, match=r"data_batch_2 in .* is damaged, incomplete") as caught:
        data.load("cifar10", str(tmp_path))
    assert "--data-dir" in str(caught.value) and "--dataset synthetic" in str(caught.value)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_archive_is_named(share: float, tmp_path: Path) -> None:
    content = archive(files())
    (tmp_path / cifar10.ARCHIVE).write_bytes(content[: int(share * len(content))])
    with pytest.raises(UsageError, match=f"{cifar10.ARCHIVE} is damaged, incomplete"):
        data.load("cifar10", str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == [cifar10.ARCHIVE]


def test_an_archive_without_a_batch_says_which(tmp_path: Path) -> None:
    contents = files()
    del contents["data_batch_4"]
    (tmp_path / cifar10.ARCHIVE).write_bytes(archive(contents))
    with pytest.raises(UsageError, match="lacks data_batch_4"):
        data.load("cifar10", str(tmp_path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"labels": [11] * N}, "numbers from 0 to 9"),
        ({"labels": [1.5] * N}, "numbers from 0 to 9"),
        ({"labels": [1]}, "6 images and 1 labels"),
        ({"labels": None}, "numbers from 0 to 9"),
        ({"data": np.zeros((N, 5), np.uint8)}, "N, 3072"),
        ({"data": np.zeros((N, 3072), np.float32)}, "N, 3072"),
        ({"data": b"text"}, "N, 3072"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2]}, "2 images, other batches 6"),
    ],
)
def test_what_is_not_cifar10_is_refused(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    contents = files() | {"data_batch_5": pickled(batch(4) | change)}
    write_folder(tmp_path, contents)
    with pytest.raises(UsageError, match=told):
        data.load("cifar10", str(tmp_path))


@pytest.mark.parametrize("phase", ["prepare", "load"])
def test_every_rank_gets_the_error_that_one_rank_met(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, files())
    works = getattr(cifar10.CIFAR10, phase)
    failed: list[int] = []

    def fails_once(self: cifar10.CIFAR10, data_dir: str) -> Any:
        if not failed:
            failed.append(gossip.world().rank)
            raise UsageError("one rank cannot read")
        return works(self, data_dir)

    monkeypatch.setattr(cifar10.CIFAR10, phase, fails_once)
    assert gossip.launch(load_message, 4, str(tmp_path)) == ["one rank cannot read"] * 4
    assert len(failed) == 1


def load_message(data_dir: str) -> str:
    """The message of the error with which loading ends on this node."""
    with pytest.raises(UsageError) as caught:
        data.load("cifar10", data_dir, gossip.world())
    return str(caught.value)


# -- downloading -------------------------------------------------------------------------------------


class Server(http.server.ThreadingHTTPServer):
    """Serves `content`; breaks off after `break_after` bytes of a response while `breaks` lasts."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges = content, True
        self.breaks, self.break_after = 0, 0
        self.requests: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/cifar-10-python.tar.gz"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.requests.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start >= len(server.content) > 0:
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: server.break_after]
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(archive(files())) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(cifar10, "URL", server.url)
        monkeypatch.setattr(cifar10, "MD5", hashlib.md5(server.content).hexdigest())
        yield server
        server.shutdown()
        thread.join()


def test_downloads_what_is_absent_once(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        check(data.load("cifar10", str(tmp_path / "new" / "folder")))
    assert server.requests == [None]


def test_one_rank_downloads_while_the_others_wait(server: Server, tmp_path: Path) -> None:
    for dataset in gossip.launch(lambda: data.load("cifar10", str(tmp_path), gossip.world()), 4):
        check(dataset)
    assert server.requests == [None]


def test_two_jobs_do_not_collide(server: Server, tmp_path: Path) -> None:
    jobs = [
        threading.Thread(target=download.download, args=(server.url, tmp_path / "file", cifar10.MD5))
        for _ in range(4)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert server.requests == [None]
    assert (tmp_path / "file").read_bytes() == server.content


@pytest.mark.parametrize("ranges", [True, False])
def test_goes_on_where_an_earlier_run_was_interrupted(ranges: bool, server: Server, tmp_path: Path) -> None:
    server.ranges = ranges
    (tmp_path / f"{cifar10.ARCHIVE}.part").write_bytes(server.content[:1000])
    check(data.load("cifar10", str(tmp_path)))
    assert server.requests == ["bytes=1000-"]


def test_an_earlier_run_had_everything_but_the_name(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{cifar10.ARCHIVE}.part").write_bytes(server.content)
    check(data.load("cifar10", str(tmp_path)))


def test_takes_a_broken_connection_up_again(server: Server, tmp_path: Path) -> None:
    server.breaks, server.break_after = 2, 500
    check(data.load("cifar10", str(tmp_path)))
    assert server.requests == [None, "bytes=500-", "bytes=1000-"]


def test_gives_up_on_a_connection_that_always_breaks_and_keeps_what_came(
    server: Server, tmp_path: Path
) -> None:
    server.breaks, server.break_after = 1000, 500
    with pytest.raises(UsageError, match="connection broke after 2,500 bytes"):
        data.load("cifar10", str(tmp_path))
    server.breaks = 0
    check(data.load("cifar10", str(tmp_path)))


def test_wrong_content_is_refused_and_deleted(server: Server, tmp_path: Path) -> None:
    server.content = server.content[:-1] + b"x"
    with pytest.raises(UsageError, match=f"has the MD5 .*, not {cifar10.MD5}"):
        data.load("cifar10", str(tmp_path))
    assert not any(p.name.startswith(cifar10.ARCHIVE) and p.suffix != ".lock" for p in tmp_path.iterdir())


def test_the_servers_refusal_is_told(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "do_GET", lambda self: self.send_error(404))
    with pytest.raises(UsageError, match="the server answered 404"):
        data.load("cifar10", str(tmp_path))


def test_offline_every_rank_says_what_to_do(tmp_path: Path) -> None:
    messages = gossip.launch(load_message, 3, str(tmp_path))
    assert len(set(messages)) == 1
    for told in (cifar10.URL, str(tmp_path), "--data-dir", "--dataset synthetic", "refused"):
        assert told in messages[0]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="could not be downloaded"):
        data.load("cifar10", str(tmp_path / "file" / "folder"))


def test_a_device_is_no_data_dir() -> None:
    with pytest.raises(UsageError, match="neither a folder nor"):
        data.load("cifar10", "/dev/null")


def test_the_official_address_and_sum() -> None:
    assert OFFICIAL_URL == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    assert cifar10.MD5 == "c58f30108f718f92721af3b95e74349a"


# -- reduced ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 8])
def test_reduced_images_are_means_over_squares(tmp_path: Path, size: int) -> None:
    write_folder(tmp_path, files())
    whole = data.load("cifar10", str(tmp_path))
    small = data.load(f"cifar10:size={size},test=4", str(tmp_path))
    factor = 32 // size
    for images, reduced in ((whole.train_x, small.train_x), (whole.test_x[:4], small.test_x)):
        squares = images.double().numpy().reshape(-1, 3, size, factor, size, factor)
        assert np.array_equal(reduced.numpy(), np.floor(squares.mean((3, 5)) + 0.5))
    assert torch.equal(small.train_y, whole.train_y) and torch.equal(small.test_y, whole.test_y[:4])
    scaled = small.train_x.double() / 255
    assert torch.allclose(small.mean.double(), scaled.mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(small.std.double(), scaled.std((0, 2, 3), correction=0), atol=1e-6)


@pytest.mark.parametrize("option", ["size=24", "test=0", "test=10001"])
def test_sizes_that_do_not_fit(tmp_path: Path, option: str) -> None:
    with pytest.raises(UsageError, match="fit"):
        data.load(f"cifar10:{option}", str(tmp_path))
