import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from torchpfc.data import IMAGE_SETS, DataError, Images, cache_folder, formats, images, load_images
from torchpfc.data.formats import read_cifar10_pickled, read_idx

NUM_TRAIN, NUM_TEST = 5, 2  # of MNIST; a batch of CIFAR-10 has one image
BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]


@pytest.fixture(autouse=True)
def no_data_elsewhere(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHPFC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def made_examples(n, m, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (n, m), np.uint8), random.integers(0, 10, n, np.uint8)


def idx_bytes(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_files(n_train=NUM_TRAIN, n_test=NUM_TEST):
    """The content of the four files of a set like MNIST, by name."""
    files = {}
    for part, n, seed in (("train", n_train, 0), ("t10k", n_test, 1)):
        pixels, label = made_examples(n, 784, seed)
        files[f"{part}-images-idx3-ubyte"] = idx_bytes(pixels.reshape(n, 28, 28))
        files[f"{part}-labels-idx1-ubyte"] = idx_bytes(label)
    return files


def python2_pickle(pixels, label):
    """What Python 2 and a NumPy of its time write for a batch of CIFAR-10, opcode by opcode."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def integer(value):
        return b"J" + struct.pack("<i", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85q\x03" + text(b"b") + b"\x87Rq\x04"
        b"(K\x01" + integer(pixels.shape[0]) + integer(pixels.shape[1]) + b"\x86"
        b"cnumpy\ndtype\nq\x05" + text(b"u1") + b"K\x00K\x01\x87Rq\x06"
        b"(K\x03" + text(b"|") + b"NNN" + integer(-1) + integer(-1) + b"K\x00tb\x89"
        b"T" + struct.pack("<I", pixels.size) + pixels.tobytes() + b"tb"
    )
    labels = b"](" + b"".join(b"K" + bytes([number]) for number in label) + b"e"
    names = b"](" + text(b"a_cat.png") + b"e"
    items = text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + labels
    return b"\x80\x02}q\x00(" + items + text(b"data") + array + text(b"filenames") + names + b"u."


def python3_pickle(pixels, label):
    return pickle.dumps({"data": pixels, "labels": label.tolist()}, protocol=2)


def binary_batch(pixels, label):
    return b"".join(bytes([number]) + row.tobytes() for row, number in zip(pixels, label, strict=True))


def cifar10_files(write=binary_batch):
    """The content of the six files of a set like CIFAR-10, by name."""
    suffix = ".bin" if write is binary_batch else ""
    return {name + suffix: write(*made_examples(1, 3072, seed)) for seed, name in enumerate(BATCHES)}


def write_files(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_archive(path, folder, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        directory = tarfile.TarInfo(folder)
        directory.type = tarfile.DIRTYPE
        archive.addfile(directory)
        for name, content in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_mnist(data_dir, name="mnist", **changed):
    write_files(data_dir / name, idx_files() | changed)


def expected_fingerprint(*parts):
    return hashlib.sha256(b"".join(array.tobytes() for part in parts for array in part)).hexdigest()


# The tensors


def test_images_know_their_number_and_their_shape():
    some = Images(torch.rand(3, 4), torch.tensor([1, 0, 2]), (1, 2, 2))
    assert len(some) == 3
    moved = some.to("meta")
    assert moved.x.device.type == moved.label.device.type == "meta"
    assert moved.shape == (1, 2, 2)


@pytest.mark.parametrize("rows", [torch.tensor([2, 0]), torch.tensor([True, False, True])])
def test_select_takes_pixels_and_labels_of_the_same_images(rows):
    some = Images(torch.arange(12.0).reshape(3, 4), torch.tensor([7, 8, 9]), (1, 2, 2)).select(rows)
    assert len(some) == 2
    assert torch.equal(some.x[:, 0] / 4 + 7, some.label.float())
    assert some.shape == (1, 2, 2)


# The digits


def test_digits_are_those_of_scikit_learn():
    digits = load_images("digits")
    assert (digits.name, digits.num_classes, digits.train.shape) == ("digits", 10, (1, 8, 8))
    assert digits.train.x.dtype == torch.float32
    assert digits.train.label.dtype == torch.int64
    pixels, label = load_digits(return_X_y=True)
    ours = torch.cat((digits.train.x * 16, digits.test.x * 16)).numpy(), [*digits.train.label, *digits.test.label]
    assert sorted(zip(map(bytes, ours[0].astype(np.uint8)), map(int, ours[1]), strict=True)) == sorted(
        zip(map(bytes, pixels.astype(np.uint8)), map(int, label), strict=True)
    )


def test_test_digits_have_every_class_in_its_share():
    digits = load_images("digits")
    assert len(digits.test) == 360
    share = digits.test.label.bincount() / (digits.train.label.bincount() + digits.test.label.bincount())
    assert ((share - 0.2).abs() < 0.005).all()


def test_digits_are_the_published_ones():
    digits = load_images("digits")
    parts = [((part.x * 16).byte().numpy(), part.label.byte().numpy()) for part in (digits.train, digits.test)]
    assert digits.fingerprint == expected_fingerprint(*parts)
    assert digits.remark == ""


# MNIST and Fashion-MNIST


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_idx_files_of_every_spelling_give_the_same_tensors(name, dotted, compressed, tmp_path):
    files = idx_files()
    if dotted:
        files = {file.replace("-idx", ".idx"): content for file, content in files.items()}
    if compressed:
        files = {f"{file}.gz": gzip.compress(content) for file, content in files.items()}
    write_files(tmp_path / name, files)
    data = load_images(name, tmp_path)
    train, test = made_examples(NUM_TRAIN, 784, 0), made_examples(NUM_TEST, 784, 1)
    for images_read, (pixels, label) in ((data.train, train), (data.test, test)):
        assert images_read.shape == (1, 28, 28)
        assert torch.equal(images_read.x, torch.tensor(pixels).float() / 255)
        assert torch.equal(images_read.label, torch.tensor(label).long())
    assert (data.name, data.num_classes) == (name, 10)
    assert data.fingerprint == expected_fingerprint(train, test)


def test_a_file_named_gz_may_have_been_unpacked(tmp_path):
    write_files(tmp_path / "mnist", {f"{name}.gz": content for name, content in idx_files().items()})
    assert len(load_images("mnist", tmp_path).train) == NUM_TRAIN


# CIFAR-10


def test_the_opcodes_of_python_2_are_a_pickle_that_numpy_reads():
    pixels, label = made_examples(3, 3072)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about the age of the format
        batch = pickle.loads(python2_pickle(pixels, label), encoding="latin1")
    assert np.array_equal(batch["data"], pixels)
    assert batch["labels"] == label.tolist()


@pytest.mark.parametrize("packed", ["folder", "gzip", "archive"])
@pytest.mark.parametrize("write", [binary_batch, python2_pickle, python3_pickle])
def test_cifar10_of_every_layout_gives_the_same_tensors(write, packed, tmp_path):
    files = cifar10_files(write)
    folder, archive = "cifar-10-batches-py", "cifar-10-python.tar.gz"
    if write is binary_batch:
        folder, archive = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"
    if packed == "archive":
        write_archive(tmp_path / archive, folder, files)
    elif packed == "gzip":
        write_files(tmp_path / folder, {f"{name}.gz": gzip.compress(content) for name, content in files.items()})
    else:
        write_files(tmp_path / folder, files)
    found = sorted(tmp_path.rglob("*"))
    data = load_images("cifar10", tmp_path)
    assert sorted(tmp_path.rglob("*")) == found  # nothing was unpacked on the disk
    batches = [made_examples(1, 3072, seed) for seed in range(6)]
    train = [np.concatenate(arrays) for arrays in zip(*batches[:5], strict=True)]
    assert data.train.shape == data.test.shape == (3, 32, 32)
    assert torch.equal(data.train.x, torch.tensor(train[0]).float() / 255)
    assert torch.equal(data.train.label, torch.tensor(train[1]).long())
    assert torch.equal(data.test.x, torch.tensor(batches[5][0]).float() / 255)
    assert torch.equal(data.test.label, torch.tensor(batches[5][1]).long())
    assert data.fingerprint == expected_fingerprint(train, batches[5])


class Malicious:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (self.target,)


def test_a_pickle_runs_no_code(tmp_path):
    target = tmp_path / "made"
    attack = pickle.dumps({"data": Malicious(str(target)), "labels": [1]}, protocol=2)
    write_files(tmp_path / "cifar-10-batches-py", cifar10_files(python3_pickle) | {"data_batch_2": attack})
    with pytest.raises(
        DataError, match=r"data_batch_2 must be a pickled batch .*asks for \w+.mkdir, which is not allowed"
    ):
        load_images("cifar10", tmp_path)
    assert not target.exists()
    pickle.loads(attack)
    assert target.exists()  # so it was an attack


@pytest.mark.parametrize(
    "name", ["os\nsystem", "builtins\neval", "numpy\nload", "numpy\nndarray", "functools\npartial"]
)
def test_a_pickle_calls_nothing_but_what_arrays_need(name, tmp_path):
    attack = b"\x80\x02c" + name.encode() + b"\nU\x04true\x85R."
    write_files(tmp_path, cifar10_files(python3_pickle) | {"data_batch_1": attack})
    with pytest.raises(
        DataError, match="data_batch_1 must be a pickled batch of CIFAR-10 and nothing else, got an error"
    ):
        read_cifar10_pickled(tmp_path)


@given(position=st.integers(0, 3500), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_pickle_is_a_data_error_or_still_a_batch(tmp_path_factory, position, value, cut):
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(python2_pickle(*made_examples(1, 3072)))
    position %= len(content)
    if cut:
        del content[position:]
    else:
        content[position] = value
    write_files(folder, cifar10_files(python2_pickle) | {"test_batch": content})
    try:
        parts = read_cifar10_pickled(folder)
    except DataError as error:
        assert str(folder / "test_batch") in str(error)
    else:
        assert parts.test.pixels.shape == (1, 3, 32, 32)


# Fingerprints and remarks


def test_images_that_nobody_knows_are_remarked_on(tmp_path):
    write_mnist(tmp_path)
    assert load_images("mnist", tmp_path).remark == "These are not known to be the published images."


def test_one_pixel_changes_the_fingerprint(tmp_path):
    content = bytearray(idx_files()["t10k-images-idx3-ubyte"])
    content[-1] ^= 1
    write_mnist(tmp_path / "one")
    write_mnist(tmp_path / "other", **{"t10k-images-idx3-ubyte": bytes(content)})
    assert load_images("mnist", tmp_path / "one").fingerprint != load_images("mnist", tmp_path / "other").fingerprint


def test_a_known_fingerprint_has_its_remark(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    fingerprint = load_images("mnist", tmp_path).fingerprint
    monkeypatch.setattr(images, "REMARKS", {fingerprint: "They were turned upside down."})
    assert load_images("mnist", tmp_path).remark == "They were turned upside down."


@pytest.mark.parametrize("write", [binary_batch, python2_pickle])
def test_published_batches_of_cifar10_are_known_by_their_checksums(write, tmp_path, monkeypatch):
    checksums = tuple(hashlib.md5(content).hexdigest() for content in cifar10_files().values())
    folder = "cifar-10-batches-bin" if write is binary_batch else "cifar-10-batches-py"
    write_files(tmp_path / folder, cifar10_files(write))
    assert load_images("cifar10", tmp_path).remark == images.UNKNOWN
    monkeypatch.setattr(images, "CIFAR10_BATCHES", checksums)
    assert load_images("cifar10", tmp_path).remark == ""


# Where it looks


def test_the_variable_names_the_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path / "named")
    monkeypatch.setenv("TORCHPFC_DATA", str(tmp_path / "named"))
    assert len(load_images("mnist").train) == NUM_TRAIN


def test_the_cache_is_where_it_looks_last(tmp_path, monkeypatch):
    write_mnist(cache_folder())
    assert len(load_images("mnist").train) == NUM_TRAIN
    (tmp_path / "named").mkdir()
    monkeypatch.setenv("TORCHPFC_DATA", str(tmp_path / "named"))
    assert len(load_images("mnist").train) == NUM_TRAIN
    write_files(tmp_path / "named" / "mnist", idx_files(n_train=3))
    assert len(load_images("mnist").train) == 3


def test_a_folder_that_was_asked_for_is_the_only_one(tmp_path, monkeypatch):
    write_mnist(cache_folder())
    write_mnist(tmp_path / "named")
    monkeypatch.setenv("TORCHPFC_DATA", str(tmp_path / "named"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"mnist must be in a data folder, got nothing at \S+/empty/mnist; run"):
        load_images("mnist", tmp_path / "empty")


def test_an_unpacked_folder_comes_before_the_archive(tmp_path):
    write_files(tmp_path / "cifar-10-batches-bin", cifar10_files())
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"not even an archive")
    assert len(load_images("cifar10", tmp_path).train) == 5


def test_cache_folder_is_the_one_of_pooch(monkeypatch):
    assert cache_folder() == pooch.os_cache("torchpfc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == pooch.os_cache("torchpfc")


@pytest.mark.parametrize(
    ("platform", "folder"),
    [
        ("linux", ".cache/torchpfc"),
        ("darwin", "Library/Caches/torchpfc"),
        ("win32", "AppData/Local/torchpfc/torchpfc/Cache"),
    ],
)
def test_cache_folder_follows_the_platform(platform, folder, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(images.sys, "platform", platform)
    assert cache_folder() == Path.home() / folder


# What can be wrong


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(DataError, match="name must be one of digits, mnist, fashion-mnist, cifar10, got 'minst'"):
        load_images("minst")
    assert IMAGE_SETS == ("digits", "mnist", "fashion-mnist", "cifar10")


def test_a_missing_set_names_the_places_and_the_command(tmp_path, monkeypatch):
    (tmp_path / "named").mkdir()
    monkeypatch.setenv("TORCHPFC_DATA", str(tmp_path / "named"))
    with pytest.raises(DataError) as raised:
        load_images("cifar10")
    places = "cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"
    for folder in (tmp_path / "named", tmp_path / "cache" / "torchpfc"):
        for place in places:
            assert str(folder / place) in str(raised.value)
    assert str(raised.value).endswith("; run `torchpfc data get cifar10` to download it")


def test_the_command_names_a_folder_that_was_asked_for(tmp_path):
    with pytest.raises(DataError, match=rf"run `torchpfc data get mnist --data-dir {tmp_path}` to download it"):
        load_images("mnist", tmp_path)


def test_a_data_folder_has_to_exist(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"data_dir must be a folder that exists, got \S+nowhere"):
        load_images("mnist", tmp_path / "nowhere")
    monkeypatch.setenv("TORCHPFC_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"TORCHPFC_DATA must name a folder that exists, got \S+nowhere"):
        load_images("mnist")


def test_an_empty_variable_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHPFC_DATA", "")
    write_mnist(cache_folder())
    assert len(load_images("mnist").train) == NUM_TRAIN


GOOD = idx_files()
IMAGES, LABELS = GOOD["train-images-idx3-ubyte"], GOOD["train-labels-idx1-ubyte"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "train-images-idx3-ubyte",
            gzip.compress(IMAGES)[:-9],
            r"must be a whole gzip file, got [\d,]+ bytes of a damaged",
        ),
        ("train-images-idx3-ubyte", gzip.compress(IMAGES)[:5], r"must be a whole gzip file, got 5 bytes of a damaged"),
        ("train-images-idx3-ubyte", b"\x1f\x8bno", r"must be a whole gzip file, got 4 bytes of a damaged one"),
        ("train-images-idx3-ubyte", gzip.compress(IMAGES)[:-8] + bytes(8), r"must be a whole gzip .*CRC"),
        ("train-images-idx3-ubyte", gzip.compress(IMAGES)[:10] + b"\xff" * 99, r"must be a whole gzip file"),
        ("train-images-idx3-ubyte", b"", r"must start with the bytes 00 00 08 03, got no bytes"),
        ("train-images-idx3-ubyte", b"<html>", r"must start with the bytes 00 00 08 03, got 3c 68 74 6d"),
        ("train-images-idx3-ubyte", LABELS, r"must start with the bytes 00 00 08 03, got 00 00 08 01"),
        ("train-images-idx3-ubyte", IMAGES[:15], r"must have a header of 16 bytes, got 15 bytes in all"),
        ("train-images-idx3-ubyte", IMAGES[:-1], r"must be 3,936 bytes long, as its header says, got 3,935"),
        ("train-images-idx3-ubyte", IMAGES + b"\0", r"must be 3,936 bytes long, as its header says, got 3,937"),
        (
            "train-images-idx3-ubyte",
            idx_bytes(np.zeros((0, 28, 28), np.uint8)),
            r"must hold at least one item, got 0 in its header",
        ),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros((5, 32, 30), np.uint8)), r"images of 28x28 pixels, got 32x30"),
        ("train-labels-idx1-ubyte", IMAGES, r"must start with the bytes 00 00 08 01, got 00 00 08 03"),
        ("train-labels-idx1-ubyte", LABELS[:6], r"must have a header of 8 bytes, got 6 bytes in all"),
        (
            "train-labels-idx1-ubyte",
            idx_bytes(np.array([1, 9, 10, 3, 255], np.uint8)),
            r"must hold labels from 0 to 9, got 10 for image 2 \(counted from 0\)",
        ),
        (
            "train-labels-idx1-ubyte",
            GOOD["t10k-labels-idx1-ubyte"],
            r"must hold as many labels as train-images-idx3-ubyte has images, 5, got 2",
        ),
    ],
)
def test_a_wrong_idx_file_is_one_line_that_names_it(file, content, message, tmp_path):
    write_mnist(tmp_path, **{file: content})
    with pytest.raises(
        DataError, match=rf"^{tmp_path / 'mnist' / file} must .*; replace it, or delete it and run `torchpfc"
    ) as raised:
        load_images("mnist", tmp_path)
    assert raised.match(message)
    assert "\n" not in str(raised.value)


def test_a_wrong_file_in_the_cache_needs_no_folder_in_the_command():
    write_mnist(cache_folder(), **{"t10k-images-idx3-ubyte": b""})
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte must .* and run `torchpfc data get mnist`$"):
        load_images("mnist")


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_a_missing_idx_file_is_named(missing, tmp_path):
    write_files(tmp_path / "mnist", {name: content for name, content in GOOD.items() if name != missing})
    (tmp_path / "mnist" / f"{missing}.gz.part").write_bytes(gzip.compress(GOOD[missing]))
    with pytest.raises(
        DataError, match=rf"mnist must hold {missing} \(or {missing}.gz\), got a folder without it; replace it"
    ):
        load_images("mnist", tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write_mnist(tmp_path)

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match="train-images-idx3-ubyte must be readable, got Permission denied; replace it"):
        load_images("mnist", tmp_path)


@given(st.integers(0, len(IMAGES) - 1))
def test_an_idx_file_cut_anywhere_is_a_data_error(tmp_path_factory, length):
    folder = tmp_path_factory.mktemp("cut")
    write_files(folder, idx_files() | {"train-images-idx3-ubyte": IMAGES[:length]})
    with pytest.raises(DataError, match="train-images-idx3-ubyte must"):
        read_idx(folder)


PIXELS, LABEL = made_examples(2, 3072)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"must be a multiple of 3,073 bytes long \(a label and 3,072 pixels an image\), got 0 bytes"),
        (bytes(3072), r"must be a multiple of 3,073 bytes long .*, got 3,072 bytes"),
        (binary_batch(PIXELS, LABEL) + b"\0", r"must be a multiple of 3,073 bytes long .*, got 6,147 bytes"),
        (binary_batch(PIXELS, [9, 11]), r"must hold labels from 0 to 9, got 11 for image 1"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_wrong_binary_batch_is_one_line_that_names_it(content, message, packed, tmp_path):
    files = cifar10_files() | {"data_batch_3.bin": content}
    folder = tmp_path / "cifar-10-batches-bin"
    if packed:
        write_archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
        named = f"data_batch_3.bin in {tmp_path / 'cifar-10-binary.tar.gz'}"
    else:
        write_files(folder, files)
        named = str(folder / "data_batch_3.bin")
    with pytest.raises(
        DataError, match=rf"^{named} {message}.*; replace it, or delete it and run `torchpfc data get cifar10"
    ):
        load_images("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"be a pickled batch of CIFAR-10 and nothing else, got an error \(EOFError: Ran out of input\)"),
        (python3_pickle(PIXELS, LABEL)[:-1], r"be a pickled batch of CIFAR-10"),
        (pickle.dumps([1, 2], protocol=2), r"be a pickled batch of CIFAR-10"),
        (pickle.dumps({"data": 1}, protocol=2), r"be a pickled batch of CIFAR-10 .*\(KeyError: 'labels'\)"),
        (pickle.dumps({"data": "abc", "labels": [1]}, protocol=2), r"array of pixels of shape \(n, 3072\), got str"),
        (python3_pickle(PIXELS.astype(np.int64), LABEL), r".*its array is of type 'i8' instead of bytes"),
        (python3_pickle(PIXELS[:, 1:], LABEL), r"array of pixels of shape \(n, 3072\), got \(2, 3071\)"),
        (python3_pickle(PIXELS[0], LABEL), r"array of pixels of shape \(n, 3072\), got \(3072,\)"),
        (python2_pickle(PIXELS[:0], LABEL[:0]), r"array of pixels of shape \(n, 3072\), got \(0, 3072\)"),
        (python3_pickle(PIXELS, LABEL[:1]), r"as many labels as images, 2, each an integer, got int64 of shape \(1,\)"),
        (python3_pickle(PIXELS, LABEL / 2), r"as many labels as images, 2, each an integer, got float64 of shape"),
        (python3_pickle(PIXELS, np.array([3, -1])), r"hold labels from 0 to 9, got -1 for image 1"),
        (python3_pickle(PIXELS, np.array([256, 0])), r"hold labels from 0 to 9, got 256 for image 0"),
    ],
)
def test_a_wrong_pickled_batch_is_one_line_that_names_it(content, message, tmp_path):
    write_files(tmp_path / "cifar-10-batches-py", cifar10_files(python3_pickle) | {"test_batch": content})
    with pytest.raises(
        DataError, match=rf"^{tmp_path / 'cifar-10-batches-py' / 'test_batch'} must (.* )?{message}"
    ) as raised:
        load_images("cifar10", tmp_path)
    assert "\n" not in str(raised.value)


def test_a_missing_batch_is_named(tmp_path):
    files = cifar10_files()
    del files["data_batch_4.bin"]
    write_files(tmp_path / "folder" / "cifar-10-batches-bin", files)
    with pytest.raises(
        DataError, match=r"cifar-10-batches-bin must hold data_batch_4.bin \(or data_batch_4.bin.gz\), got"
    ):
        load_images("cifar10", tmp_path / "folder")
    write_archive(tmp_path / "packed" / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
    with pytest.raises(
        DataError, match=r"binary.tar.gz must hold data_batch_4 or data_batch_4.bin, got neither; replace it"
    ):
        load_images("cifar10", tmp_path / "packed")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_archive_is_one_line_that_names_it(share, tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_archive(path, "cifar-10-batches-bin", cifar10_files())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=rf"^{path} must be a whole tar.gz archive, got a damaged one \(.*; replace it"):
        load_images("cifar10", tmp_path)


@pytest.mark.parametrize("content", [b"<html>404</html>", gzip.compress(b"no archive" * 100), gzip.compress(b"x")[:-9]])
def test_what_is_no_archive_is_one_line_that_names_it(content, tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz must be a whole tar.gz archive, got a damaged one"):
        load_images("cifar10", tmp_path)


def test_a_link_in_an_archive_is_not_followed(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match=r"tar\.gz must hold data_batch_1 or data_batch_1\.bin, got neither"):
        load_images("cifar10", tmp_path)


# More than the data set has


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["packed", "as it is"])
def test_a_file_that_holds_more_than_the_data_set_is_refused_before_all_of_it_is_read(pack, tmp_path):
    write_mnist(tmp_path, **{"train-labels-idx1-ubyte": pack(bytes(10_000_000))})
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte must hold at most 60,008 bytes, .* got more"):
        load_images("mnist", tmp_path)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("CIFAR10_ARCHIVE_BYTES", r"tar\.gz must hold at most 50,000 bytes, as the data set does, got more"),
        ("CIFAR10_BYTES", r"data_batch_1\.bin in .*tar\.gz must hold at most 50,000 bytes, .* got 61,460"),
    ],
)
def test_an_archive_that_holds_more_than_the_data_set_is_refused(limit, message, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, limit, 50_000)
    batch = {f"{name}.bin": bytes(20 * 3073) for name in (*formats.CIFAR10_TRAIN, formats.CIFAR10_TEST)}
    write_archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", batch)
    with pytest.raises(DataError, match=message):
        load_images("cifar10", tmp_path)


def test_a_file_with_holes_is_refused_by_the_size_that_it_would_have(tmp_path):
    member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 0)  # one piece, of no bytes
    header[483:495] = tarfile.itn(10**12, 12, tarfile.GNU_FORMAT)  # its size with the holes
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(bytes(header) + bytes(1024)))
    with pytest.raises(DataError, match=r"must hold at most 32,000,000 bytes, .* got 1,000,000,000,000"):
        load_images("cifar10", tmp_path)
