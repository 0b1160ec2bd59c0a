"""A stranger checks certificates: by learning again, and by noticing that something was changed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchpfc import ContinualPFC, PFCBlock, forget
from torchpfc.checkpoint import CorruptFileError
from torchpfc.cli import main
from torchpfc.continual import Likeness, RidgeReadout, Shifts
from torchpfc.continual.certificate import content_of
from torchpfc.optim.ledger import Ledger
from torchpfc.unlearning import Certificate, Verdict, save_batch, verify

NAMES = ("mo", 3, ("tu", 1), 0.5)


def batch_of(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.rand(9, 12, generator=generator), torch.arange(9) % 3
    return x, y, torch.rand(9, generator=generator) + 0.5 if seed % 2 else None


def learned(folder: Path, **options: Any) -> ContinualPFC:
    model = ContinualPFC(12, **({"columns_per_class": 2, "refine": 1} | options))
    for seed, name in enumerate(NAMES):
        x, y, weight = batch_of(seed)
        generator = torch.Generator().manual_seed(seed)
        model.learn(x, y, weight=weight, batch=name, count=1 if seed == 2 else None, generator=generator)
        save_batch(folder / f"file {9 - seed}.npz", x, y, weight)
    return model


@pytest.mark.parametrize("how", ["remove", "zero"])
def test_the_certificate_of_a_learner_is_confirmed_by_a_stranger(how: Any, tmp_path: Path, capsys: Any) -> None:
    model = learned(tmp_path, views=Shifts((1, 3, 4)), wait=True)
    certificate = model.forget([3, ("tu", 1)], how=how)
    assert certificate.exact and certificate.batches == (3, ("tu", 1)) and len(certificate.learned) == 4
    certificate.save(tmp_path / "certificate.json")
    assert Certificate.load(tmp_path / "certificate.json") == certificate
    assert main(["verify", str(tmp_path / "certificate.json"), "--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "learning 4 batches and forgetting 2, and learning 2 alone, give the same, bit for bit" in printed
    assert printed.count("has the hash that the certificate gives") == 2 and "The certificate holds." in printed
    assert "optimizer" not in str(certificate)


def test_any_byte_that_was_changed_is_noticed(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "certificate.json"
    learned(tmp_path).forget(["mo"]).save(path)
    whole = path.read_bytes()
    places = np.random.default_rng(0).choice(len(whole), 40, replace=False).tolist()
    for place in (*places, len(whole) - 1, whole.index(b"exact") + 8):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CorruptFileError):
            Certificate.load(path)
    assert main(["verify", str(path), "--data", str(tmp_path)]) == 1
    assert "refused: " in (printed := capsys.readouterr().out) and "The certificate does not hold." in printed


def test_what_was_made_up_is_refused(tmp_path: Path) -> None:
    """A checksum can be made anew, so what counts is the training."""
    certificate = learned(tmp_path).forget(["mo"])
    assert verify(certificate, tmp_path).holds
    other = verify(dataclasses.replace(certificate, sha256_after="0" * 64), tmp_path)
    assert not other.holds and "the model after has the hash" in str(other)
    more = dataclasses.replace(certificate, batches=("mo", "fr"))
    assert verify(more, tmp_path).refused == ("batch 'fr' is to be forgotten, but was never learned",)
    assert certificate.settings is not None
    changed = verify(dataclasses.replace(certificate, settings=certificate.settings | {"l1": 0.5}), tmp_path)
    assert len(changed.confirmed) == 1 and not changed.holds


def test_a_batch_that_is_missing_or_other_is_named(tmp_path: Path, capsys: Any) -> None:
    learned(tmp_path).forget(["mo"]).save(tmp_path / "certificate.json")
    x, y, weight = batch_of(1)
    save_batch(tmp_path / "file 8.npz", x, y.flip(0), weight)
    (tmp_path / "file 6.npz").unlink()
    assert main(["verify", str(tmp_path / "certificate.json"), "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "refused: batch 3 (9 rows)" in printed and "refused: batch 0.5 (9 rows)" in printed
    assert printed.count("refused: ") == 2 and "in none of the 3 .npz files" in printed


def test_another_machine_checks_bits_and_says_that_hashes_could_not_be(tmp_path: Path) -> None:
    certificate = learned(tmp_path).forget(["mo"])
    elsewhere = dataclasses.replace(certificate, machine=certificate.machine | {"threads": 99}, sha256_after="0" * 64)
    verdict = verify(elsewhere, tmp_path)
    assert verdict.holds and len(verdict.confirmed) == 1
    assert "threads 99, not" in verdict.unchecked[0] and "could not be checked" in str(verdict)


def test_what_cannot_be_written_down_can_be_made_by_the_verifier(tmp_path: Path) -> None:
    def make() -> ContinualPFC:
        return ContinualPFC(12, columns_per_class=2, refine=1, read_out=RidgeReadout(Likeness.random(12, 5)))

    certificate = learned(tmp_path, read_out=make().read_out).forget(["mo"])
    assert certificate.settings is None and certificate.exact
    verdict = verify(certificate, tmp_path)
    assert not verdict.holds and "a read-out has features of its own" in verdict.unchecked[0]
    assert verify(certificate, tmp_path, make=make).holds
    assert not verify(certificate, tmp_path, make=lambda: ContinualPFC(12)).holds


def test_max_parts_that_made_parts_fewer_is_not_exact(tmp_path: Path) -> None:
    model, wide = learned(tmp_path, max_parts=7), learned(tmp_path, max_parts=50)
    alone = model.inexact
    certificate = model.forget(alone or ["mo"])
    assert certificate.exact == (model.num_basis == sum(record.parts for record in model.records if record))
    x, y, _ = batch_of(0)
    joined = ContinualPFC(12, columns_per_class=4, max_parts=3)
    joined.learn(x[y == 0], y[y == 0], batch="a")  # one part
    joined.learn(x.repeat(3, 1)[:8], torch.ones(8).long(), batch="b")  # four parts, of which two stay
    assert joined.inexact == () and not (certificate := joined.forget(["a"])).exact
    assert "max_parts made one part of several" in str(certificate)
    assert not verify(certificate, tmp_path).holds
    assert wide.forget(["mo"]).exact


def test_a_certificate_that_claims_nothing_exact_is_not_confirmed(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.record(0, range(2))
    certificate = forget(PFCBlock(4, 2, num_basis=5), ledger, batches=[0])
    assert not certificate.exact
    verdict = verify(certificate, tmp_path)
    assert verdict == Verdict(
        refused=("the certificate does not claim that this is the model that never saw the data",)
    )
    certificate.save(tmp_path / "certificate.json")
    assert main(["verify", str(tmp_path / "certificate.json")]) == 1


def test_a_learner_that_forgets_through_its_ledger_hears_nothing_of_optimizers() -> None:
    model, ledger = ContinualPFC(4, columns_per_class=2), Ledger()
    for c in range(2):
        model.learn(torch.rand(6, 4), torch.full((6,), c), ledger=ledger)
    certificate = forget(model, ledger, batches=[0])
    assert not certificate.exact and not any("optimizer" in text for text in certificate.not_guaranteed)


def test_names_that_cannot_be_written_down_are_forgotten_all_the_same(tmp_path: Path) -> None:
    model = ContinualPFC(4)
    model.learn(torch.rand(6, 4), torch.zeros(6).long(), batch=frozenset({1}))
    model.learn(torch.rand(6, 4), torch.zeros(6).long(), batch="b")
    certificate = model.forget([frozenset({1})])
    assert model.batches == ("b",) and certificate.settings is None
    assert "batch must be text, a number or a tuple of these" in certificate.obstacle
    with pytest.raises(TypeError, match="batch must be text, a number or a tuple of these"):
        certificate.save(tmp_path / "certificate.json")


def test_content_is_the_same_in_any_kind_of_array() -> None:
    x, y = np.arange(6.0).reshape(3, 2), [1, 0, 1]
    same = content_of(x, y, None)
    for other in (x.tolist(), torch.tensor(x), np.asfortranarray(x), x.astype(">f8"), x.astype(int)):
        assert content_of(other, np.array(y, dtype=np.int8), None) == same
    assert same.rows == 3
    different = [(x.astype(np.float32), y), (x.T, y), (x, [1, 1, 1]), (x, None), (-x, y)]
    assert len({same.sha256, *(content_of(a, b, None).sha256 for a, b in different)}) == 6
    assert content_of(x, y, np.ones(3)) != same


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format must be 1, got 2"),
        ({"settings": []}, "Expected `object . null`"),
        ({"learned": [{"name": "a", "rows": -1, "sha256": "0"}]}, "must be a certificate of torchpfc .Expected"),
        ({"columns": [[1]]}, "must be a certificate"),
        ({"surprise": 1}, "must be a certificate"),
        ({"machine": []}, "must be a certificate"),
    ],
)
def test_files_that_are_no_certificates_are_one_line(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    learned(tmp_path).forget(["mo"]).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change, indent=1) + "\n")
    with pytest.raises(CorruptFileError, match=message) as problem:
        Certificate.load(path)
    assert "\n" not in str(problem.value)
    with pytest.raises(CorruptFileError, match="must be a certificate, got no such file"):
        Certificate.load(tmp_path / "nothing.json")


def test_files_that_are_no_batches_are_one_line(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "certificate.json"
    learned(tmp_path).forget(["mo"]).save(path)
    assert main(["verify", str(path)]) == 2
    assert "--data must name the folder of the batches" in capsys.readouterr().err
    assert main(["verify", str(path), "--data", str(tmp_path / "nowhere")]) == 2
    assert "--data must be a folder with one .npz file for each batch" in capsys.readouterr().err
    save_batch(tmp_path / "text.npz", [[1.0]], np.array(["a"], dtype=object))  # text is not pickled
    for content, message in [(b"PK\x03\x04", "must be an .npz file"), (None, "must hold an array x, got none")]:
        if content is None:
            np.savez(tmp_path / "other.npz", z=np.ones(2))
        else:
            (tmp_path / "other.npz").write_bytes(content)
        assert main(["verify", str(path), "--data", str(tmp_path)]) == 2
        assert message in (error := capsys.readouterr().err) and error.count("\n") == 1
    np.savez(tmp_path / "other.npz", x=np.array([{}], dtype=object))
    assert main(["verify", str(path), "--data", str(tmp_path)]) == 2
    assert "without pickled objects" in capsys.readouterr().err
