import errno
import gzip
import hashlib
import io
import os
import re
import socket
import struct
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from torchpfc import progress
from torchpfc.audio.stems import VALIDATION_TRACKS
from torchpfc.data import DataError, cache_folder, download, download_images, download_songs, load_images
from torchpfc.data import songs as data_songs
from torchpfc.data.download import DOWNLOADS, RemoteFile
from torchpfc.data.songs import excerpt_checksums, unpack_excerpts
from torchpfc.locks import HeldError, held

CONTENT = np.random.default_rng(0).bytes(200_000)
PIECE = 60_000  # what the server named "drops" sends before it hangs up


class Handler(BaseHTTPRequestHandler):
    """Answers as the first part of the address says."""

    def do_GET(self):
        site = self.server.site
        _, kind, name = self.path.split("/", 2)
        site.requests.append((kind, self.headers["Range"]))
        content = site.files[name]
        if kind == "wrong":
            content = content[::-1]
        start = int(self.headers["Range"][6:-1]) if self.headers["Range"] and kind not in ("whole", "stuck") else 0
        if kind == "missing":
            self.send_error(404)
        elif kind == "silent":
            site.closing.wait(10)
        elif start >= len(content):
            self.send_error(416)
        else:
            self.send(kind, content, start)

    def send(self, kind, content, start):
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if kind == "encoded":
            self.send_header("Content-Encoding", "gzip")
        if kind != "unsized":
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + PIECE if kind in ("drops", "stuck") else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *_):
        pass


class Site:
    """A server on this machine, what it has and what it was asked for."""

    def __init__(self):
        self.files = {"file.gz": CONTENT}
        self.requests = []
        self.closing = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.site = self
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def file(self, *kinds, path="mnist/file.gz", name="file.gz"):
        sha256 = hashlib.sha256(self.files[name]).hexdigest()
        return RemoteFile(path, sha256, tuple(f"{self.address}/{kind}/{name}" for kind in kinds))


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    site.closing.set()
    site.server.shutdown()
    thread.join()
    site.server.server_close()


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHPFC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def offer(monkeypatch, site):
    """Puts a file on the site in the place of MNIST."""

    def offer(*kinds):
        monkeypatch.setattr(download, "DOWNLOADS", {"mnist": (site.file(*kinds),)})

    return offer


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


# What arrives


@pytest.mark.parametrize("kind", ["good", "whole", "unsized", "encoded", "drops"])
def test_a_file_arrives_as_it_is(kind, offer, tmp_path):
    offer(kind)
    assert download_images("mnist", tmp_path / "data") == tmp_path / "data" / "mnist"
    assert (tmp_path / "data" / "mnist" / "file.gz").read_bytes() == CONTENT
    assert left_in(tmp_path / "data" / "mnist") == ["file.gz"]


def test_a_gzip_file_is_not_unpacked_on_the_way(site, monkeypatch, tmp_path):
    site.files["file.gz"] = gzip.compress(CONTENT)
    monkeypatch.setattr(download, "DOWNLOADS", {"mnist": (site.file("encoded"),)})
    download_images("mnist", tmp_path)
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == site.files["file.gz"]


def test_a_lost_connection_goes_on_where_it_stopped(site, offer, tmp_path):
    offer("drops")
    download_images("mnist", tmp_path)
    assert site.requests == [("drops", None)] + [("drops", f"bytes={k * PIECE}-") for k in (1, 2, 3)]


def test_a_second_call_goes_on_where_the_first_stopped(site, offer, tmp_path, monkeypatch):
    offer("drops")
    monkeypatch.setattr(download, "MAX_ATTEMPTS", 2)
    with pytest.raises(
        DataError, match=r"drops/file.gz: the connection was lost after 120,000 bytes\); check the connection"
    ):
        download_images("mnist", tmp_path)
    assert left_in(tmp_path / "mnist") == ["file.gz.part"]
    assert (tmp_path / "mnist" / "file.gz.part").read_bytes() == CONTENT[:120_000]
    offer("good")
    download_images("mnist", tmp_path)
    assert site.requests[2:] == [("good", "bytes=120000-")]
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(site, offer, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").write_bytes(CONTENT[:500])
    offer("whole")
    download_images("mnist", tmp_path)
    assert site.requests == [("whole", "bytes=500-")]
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == CONTENT


def test_a_server_that_brings_nothing_new_is_given_up(site, offer, tmp_path):
    offer("stuck")
    with pytest.raises(DataError, match=r"stuck/file.gz: the connection was lost after 60,000 bytes\)"):
        download_images("mnist", tmp_path)
    assert len(site.requests) == 2


def test_a_part_that_is_whole_only_needs_its_name(site, offer, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").write_bytes(CONTENT)
    offer("good")
    download_images("mnist", tmp_path)
    assert site.requests == [("good", f"bytes={len(CONTENT)}-")]
    assert left_in(tmp_path / "mnist") == ["file.gz"]


@pytest.mark.parametrize("part", [b"?" * 500, CONTENT + b"?"])
def test_a_wrong_part_is_thrown_away(part, site, offer, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").write_bytes(part)
    offer("good")
    download_images("mnist", tmp_path)
    assert site.requests == [("good", f"bytes={len(part)}-"), ("good", None)]
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == CONTENT
    assert left_in(tmp_path / "mnist") == ["file.gz"]


@pytest.mark.parametrize("first", ["missing", "wrong", "stuck"])
def test_the_next_mirror_is_tried(first, site, offer, tmp_path):
    offer(first, "good")
    download_images("mnist", tmp_path)
    assert [kind for kind, _ in site.requests] == [first] * (2 if first == "stuck" else 1) + ["good"]
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == CONTENT


def test_what_is_there_is_not_asked_for(site, offer, tmp_path):
    offer("good")
    download_images("mnist", tmp_path)
    download_images("mnist", tmp_path)
    assert len(site.requests) == 1


def test_a_damaged_file_is_replaced(site, offer, tmp_path):
    offer("good")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz").write_bytes(CONTENT[:-1])
    download_images("mnist", tmp_path)
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == CONTENT


def test_a_damaged_file_stays_until_there_is_a_better_one(offer, tmp_path):
    offer("wrong")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz").write_bytes(CONTENT[:-1])
    with pytest.raises(DataError):
        download_images("mnist", tmp_path)
    assert (tmp_path / "mnist" / "file.gz").read_bytes() == CONTENT[:-1]


def idx_gz(array):
    return gzip.compress(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def test_mnist_can_be_loaded_after_its_download(site, monkeypatch):
    pixels = np.random.default_rng(1).integers(0, 256, (3, 28, 28), np.uint8)
    for part in ("train", "t10k"):
        site.files[f"{part}-images-idx3-ubyte.gz"] = idx_gz(pixels)
        site.files[f"{part}-labels-idx1-ubyte.gz"] = idx_gz(np.array([1, 2, 3], np.uint8))
    files = tuple(site.file("drops", path=file.path, name=Path(file.path).name) for file in DOWNLOADS["mnist"])
    monkeypatch.setattr(download, "DOWNLOADS", {"mnist": files})
    assert download_images("mnist") == cache_folder() / "mnist"
    data = load_images("mnist")
    assert torch.equal(data.train.x, torch.tensor(pixels).reshape(3, 784) / 255)


def test_cifar10_can_be_loaded_after_its_download(site, monkeypatch):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = 3073
            archive.addfile(member, io.BytesIO(bytes([7] + [51] * 3072)))
    site.files["cifar.gz"] = packed.getvalue()
    file = site.file("good", path=DOWNLOADS["cifar10"][0].path, name="cifar.gz")
    monkeypatch.setattr(download, "DOWNLOADS", {"cifar10": (file,)})
    assert download_images("cifar10") == cache_folder() / "cifar-10-binary.tar.gz"
    data = load_images("cifar10")
    assert torch.equal(data.train.x, torch.full((5, 3072), 0.2))
    assert data.test.label.tolist() == [7]


def test_every_public_address_ends_in_the_name_of_its_file():
    assert [name for name, files in DOWNLOADS.items() if len(files) == 4] == ["mnist", "fashion-mnist"]
    for files in DOWNLOADS.values():
        for file in files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.urls
            assert all(re.match("https://", url) and Path(url).name == Path(file.path).name for url in file.urls)


# What can be wrong


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(DataError, match="name must be one of mnist, fashion-mnist, cifar10, got 'digits'"):
        download_images("digits", tmp_path)


def test_a_wrong_checksum_is_named_and_nothing_is_left(offer, tmp_path):
    offer("wrong")
    expected, got = (hashlib.sha256(content).hexdigest() for content in (CONTENT, CONTENT[::-1]))
    with pytest.raises(DataError) as raised:
        download_images("mnist", tmp_path)
    assert raised.match(r"must be downloaded, got no good file \(http://\S+/wrong/file.gz: file.gz must have the ")
    assert raised.match(rf"must have the SHA-256 {expected}, got {got}, so it was deleted\); check the connection")
    assert "\n" not in str(raised.value)
    assert left_in(tmp_path / "mnist") == []


def test_every_address_that_failed_is_named(offer, tmp_path):
    offer("missing", "wrong")
    with pytest.raises(
        DataError,
        match=r"\(http://\S+/missing/file.gz: status 404 Not Found; http://\S+/wrong/file.gz: file.gz must have",
    ):
        download_images("mnist", tmp_path)


def test_without_a_network_there_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/file.gz"  # nobody listens there
        monkeypatch.setattr(download, "DOWNLOADS", {"mnist": (RemoteFile("mnist/file.gz", "0" * 64, (address,)),)})
        with pytest.raises(
            DataError, match=r"file.gz: no connection \(ConnectionError\)\); check the connection and run"
        ) as raised:
            download_images("mnist", tmp_path)
    assert "\n" not in str(raised.value)
    assert left_in(tmp_path / "mnist") == []


def test_a_silent_server_is_not_waited_for(offer, monkeypatch, tmp_path):
    offer("silent", "good")
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.1)
    download_images("mnist", tmp_path)
    offer("silent")
    (tmp_path / "mnist" / "file.gz").unlink()
    with pytest.raises(DataError, match=r"silent/file.gz: no answer within 0.1 seconds\)"):
        download_images("mnist", tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_a_full_disk_is_one_line(offer, tmp_path):
    offer("good", "good")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "file.gz.part").symlink_to("/dev/full")
    with pytest.raises(
        DataError, match=r"mnist must have room for file.gz, got a full disk; make room and run the command"
    ):
        download_images("mnist", tmp_path)
    assert left_in(tmp_path / "mnist") == ["file.gz.part"]


def test_a_full_quota_is_a_full_disk(offer, monkeypatch, tmp_path):
    offer("good")

    def refuse(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(download, "_receive", refuse)
    with pytest.raises(DataError, match=r"must have room for file\.gz, got a full disk"):
        download_images("mnist", tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(offer, tmp_path):
    offer("good")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file/mnist must be a folder that can be written to, got Not a directory"):
        download_images("mnist", tmp_path / "file")


# What is seen of it


def test_a_terminal_shows_a_bar(offer, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    now = iter(range(1000))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    offer("good")
    download_images("mnist", tmp_path)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "file.gz, 0.2 MB" in shown.err
    assert "100%" in shown.err


def test_nothing_is_shown_elsewhere(offer, tmp_path, capsys):
    offer("good")
    download_images("mnist", tmp_path)
    assert capsys.readouterr() == ("", "")


# Two at once


def test_a_file_that_another_process_downloads_is_left_to_it(offer, tmp_path):
    offer("good")
    (tmp_path / "mnist").mkdir()
    with (
        held(tmp_path / "mnist" / ".file.gz.lock", "it"),
        pytest.raises(HeldError, match=rf"mnist/file\.gz must be free, got held by process {os.getpid()} on .* since"),
    ):
        download_images("mnist", tmp_path)
    assert left_in(tmp_path / "mnist") == []
    with held(tmp_path / "mnist" / ".another.gz.lock", "another"):
        download_images("mnist", tmp_path)
    assert left_in(tmp_path / "mnist") == ["file.gz"]


def test_the_lock_of_a_download_that_was_killed_at_its_end_goes(offer, tmp_path):
    offer("good")
    download_images("mnist", tmp_path)
    (tmp_path / "mnist" / ".file.gz.lock").touch()
    download_images("mnist", tmp_path)
    assert left_in(tmp_path / "mnist") == ["file.gz"]


def test_what_is_there_needs_no_lock(offer, tmp_path):
    offer("good")
    download_images("mnist", tmp_path)
    with held(tmp_path / "mnist" / ".file.gz.lock", "it"):  # as in a folder that cannot be written to
        download_images("mnist", tmp_path)


def test_what_has_arrived_is_not_lost_where_the_process_ends_before_it_has_its_name(site, offer, tmp_path, monkeypatch):
    offer("good")
    with monkeypatch.context() as patched:
        patched.setattr(download.os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            download_images("mnist", tmp_path)
    assert left_in(tmp_path / "mnist") == ["file.gz.part"]
    download_images("mnist", tmp_path)
    assert site.requests == [("good", None), ("good", f"bytes={len(CONTENT)}-")]


def interrupt(*_):
    raise KeyboardInterrupt


# Songs


@pytest.fixture
def songs(site, monkeypatch):
    """Puts an archive of two excerpts on the site."""
    content = {"train/A.stem.mp4": CONTENT[:5000], "test/B.stem.mp4": CONTENT[5000:9000]}
    sums = {path: hashlib.sha256(song).hexdigest() for path, song in content.items()}
    monkeypatch.setattr(data_songs, "excerpt_checksums", lambda: sums)

    def offer(*kinds, **changed):
        site.files["songs.zip"] = changed.get("archive") or zipped(content | changed.get("songs", {}))
        file = replace(site.file(*kinds, path="songs.zip", name="songs.zip"), sha256=None, unpack=unpack_excerpts)
        monkeypatch.setattr(download, "EXCERPTS_ARCHIVE", file)
        return content

    return offer


def zipped(content):
    packed = io.BytesIO()
    with ZipFile(packed, "w") as archive:
        for path, song in content.items():
            if song is not None:
                archive.writestr(path, song)
    return packed.getvalue()


def below(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_songs_arrive_whole_and_once(site, songs, tmp_path):
    content = songs("good", songs={"../evil.txt": b"not listed"})
    assert download_songs(tmp_path / "data") == tmp_path / "data" / "musdb18-7s"
    assert below(tmp_path) == {f"data/musdb18-7s/{path}": song for path, song in content.items()}
    download_songs(tmp_path / "data")
    assert len(site.requests) == 1


def test_songs_that_are_missing_or_damaged_are_replaced(songs, tmp_path):
    content = songs("good")
    own = {"train/A.stem.mp4": b"half of it", "valid/mine.stem.mp4": b"mine"}
    for path, song in own.items():
        (tmp_path / "musdb18-7s" / path).parent.mkdir(parents=True)
        (tmp_path / "musdb18-7s" / path).write_bytes(song)
    download_songs(tmp_path)
    assert below(tmp_path / "musdb18-7s") == own | content


def test_a_lost_connection_leaves_no_songs_and_goes_on_later(site, songs, tmp_path, monkeypatch):
    content = songs("drops", songs={"filling": CONTENT})
    with monkeypatch.context() as patched:
        patched.setattr(download, "MAX_ATTEMPTS", 2)
        with pytest.raises(DataError, match=r"songs\.zip must be downloaded, got no .* lost after 120,000 bytes"):
            download_songs(tmp_path)
    assert left_in(tmp_path) == ["songs.zip.part"]
    download_songs(tmp_path)
    assert site.requests[2:] == [("drops", f"bytes={k * PIECE}-") for k in (2, 3)]
    assert below(tmp_path / "musdb18-7s") == content


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"songs": {"test/B.stem.mp4": b"another song"}}, r"test/B\.stem\.mp4 in songs\.zip must have the SHA-256"),
        (
            {"songs": {"test/B.stem.mp4": None}},
            r"songs\.zip must hold .* no item named 'test/B\.stem\.mp4'",
        ),
        (
            {"songs": {"test/B.stem.mp4": bytes(2_000_000)}},
            r"test/B\.stem\.mp4 in songs\.zip must hold at most 1,121,973 bytes, .* got 2,000,000",
        ),
        ({"archive": CONTENT}, r"songs\.zip must be a ZIP file that can be read to its end \(File is not a zip file\)"),
    ],
    ids=["wrong", "missing", "too large", "no archive"],
)
def test_wrong_songs_are_named_and_leave_nothing_behind(changed, message, site, songs, tmp_path):
    songs("good", "missing", **changed)
    with pytest.raises(DataError, match=rf"got no good file \(http://\S+/good/songs\.zip: {message}") as raised:
        download_songs(tmp_path)
    assert "\n" not in str(raised.value) and left_in(tmp_path) == []
    assert [kind for kind, _ in site.requests] == ["good", "missing"]


def test_an_archive_that_could_not_be_unpacked_is_not_fetched_again(site, songs, tmp_path, monkeypatch):
    songs("good")
    with monkeypatch.context() as patched:
        patched.setattr(data_songs.Path, "write_bytes", full_disk)
        with pytest.raises(DataError, match=r"must have room for songs\.zip, got a full disk; make room"):
            download_songs(tmp_path)
    assert left_in(tmp_path) == ["songs.zip"]
    download_songs(tmp_path)
    assert len(site.requests) == 1 and left_in(tmp_path) == ["musdb18-7s"]
    (tmp_path / "musdb18-7s" / "test" / "B.stem.mp4").unlink()
    (tmp_path / "songs.zip").write_bytes(b"of another time")
    download_songs(tmp_path)
    assert len(site.requests) == 2 and left_in(tmp_path) == ["musdb18-7s"]


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_excerpts_of_musdb18_are_listed():
    sums = excerpt_checksums()
    assert [sum(path.startswith(part) for path in sums) for part in ("train/", "test/")] == [94, 50]
    assert all(path.endswith(".stem.mp4") and re.fullmatch("[0-9a-f]{64}", sha256) for path, sha256 in sums.items())
    assert len(set(sums.values())) == 144
    assert {f"train/{name}.stem.mp4" for name in VALIDATION_TRACKS} <= set(sums)
    assert all(Path(url).name == download.EXCERPTS_ARCHIVE.path for url in download.EXCERPTS_ARCHIVE.urls)
