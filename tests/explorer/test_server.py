import json
import threading

import pytest
from fastapi.testclient import TestClient

from torchpfc.explorer.server import MOST_BYTES, STATIC, create_app

JSON = {"content-type": "application/json"}


def test_every_view_has_its_data(client):
    model = client.get("/api/model").json()
    assert model["name"] == "digits, class by class"
    assert len(client.get("/api/parts").json()["parts"]) == model["num_parts"]
    assert client.get("/api/parts/5").json()["batches"] == [0]
    assert len(client.get("/api/examples?offset=10&limit=7").json()["examples"]) == 7
    assert len(client.get("/api/time").json()["stages"]) == 10
    assert len(client.get("/api/batches").json()["batches"]) == 30


def test_the_same_question_has_the_same_answer(client):
    for path in ("/api/model", "/api/parts", "/api/time", "/api/examples"):
        assert client.get(path).content == client.get(path).content


def test_what_is_sent_adds_up(client):
    view = client.post("/api/explain", json={"example": 0, "factors": [{"part": 3, "factor": 0.5}]}).json()
    for k, y in enumerate(view["y"]):
        parts = sum(term["contributions"][k] for term in view["terms"])
        assert parts + view["others"]["contributions"][k] + view["base"][k] == pytest.approx(y, abs=1e-5)


def test_forget_changes_the_accuracy_and_undo_brings_it_back(client):
    before = client.get("/api/model").json()
    preview = client.post("/api/forget/preview", json={"batches": [0, 1, 2]}).json()
    assert client.get("/api/model").json() == before
    assert client.post("/api/forget", json={"batches": [0, 1, 2]}).json() == preview
    after = client.get("/api/model").json()
    assert after["accuracy"] == preview["after"] != before["accuracy"]
    report = client.get("/api/report")
    assert report.headers["content-disposition"] == 'attachment; filename="torchpfc-forget-report.json"'
    assert report.json()["changes"][0]["batches"] == [0, 1, 2]
    back = client.post("/api/undo", json={}).json()
    assert {**back, "version": 0, "can_adapt": False} == before


def test_what_is_out_of_order_is_a_conflict(client):
    for answer in (client.post("/api/undo", json={}), client.get("/api/report")):
        assert answer.status_code == 409
        assert answer.json()["problem"]


@pytest.mark.parametrize("address", sorted(STATIC))
def test_files_of_the_page_have_their_types(client, address):
    answer = client.get(address)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == STATIC[address][1]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/..%2f..%2fpyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/index.html",
        "/static/../server.py",
        "//etc/passwd",
        "/api/parts/../../../etc/passwd",
        "/api/parts/..%2f..%2fetc%2fpasswd",
        "/app.js/../server.py%00",
        "/server.py",
        "/docs",
        "/openapi.json",
        "/api/parts/180",
    ],
)
def test_nothing_else_can_be_read(client, path):
    answer = client.get(path)
    assert 400 <= answer.status_code < 500
    assert "torch" not in answer.text and "root:" not in answer.text


@pytest.mark.parametrize("path", ["/api/parts/-1", "/api/parts/x", "/api/parts/1e3", f"/api/parts/{10**30}"])
def test_a_wrong_number_is_refused(client, path):
    assert client.get(path).status_code == 422


@pytest.mark.parametrize(
    "query", ["offset=-1", "limit=0", "limit=100000", "label=x", "wrong=perhaps", f"offset={10**40}"]
)
def test_a_wrong_query_is_refused(client, query):
    answer = client.get(f"/api/examples?{query}")
    assert answer.status_code == 422
    assert answer.json()["problem"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'"text"',
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"example": "0"}',
        b'{"example": 0.5}',
        b'{"example": true}',
        b'{"example": -1}',
        b'{"example": 1e400}',
        b'{"example": 99999999999999999999999}',
        b'{"example": 0, "path": "/etc/passwd"}',
        b'{"example": 0, "factors": {"3": 1}}',
        b'{"example": 0, "factors": [{"part": 0, "factor": NaN}]}',
        b'{"example": 0, "factors": [{"part": 0, "factor": -1}]}',
        b'{"example": 0, "factors": [{"part": 9999, "factor": 1}]}',
        b'{"example": 0, "adapt": "yes"}',
        b'{"values": "text"}',
        b'{"values": []}',
        b'{"values": [1, 2, 3]}',
        json.dumps({"values": [float("nan")] * 64}).encode(),
        json.dumps({"values": [float("inf")] * 64}).encode(),
        json.dumps({"values": [1e300] * 64}).encode(),
        json.dumps({"values": [None] * 64}).encode(),
        json.dumps({"values": [-1.0] * 64}).encode(),
        json.dumps({"values": [[1.0]] * 64}).encode(),
    ],
)
def test_a_hostile_question_is_refused_and_the_server_goes_on(client, body):
    answer = client.post("/api/explain", content=body, headers=JSON)
    assert 400 <= answer.status_code < 500
    assert answer.json()
    assert client.post("/api/explain", json={"example": 0}).status_code == 200


@pytest.mark.parametrize("batches", [[], "all", [-1], [1.5], [True], ["0"], [10**30], [12345], list(range(30)), None])
def test_batches_that_are_none_are_refused(client, batches):
    for path in ("/api/forget", "/api/forget/preview"):
        assert client.post(path, json={"batches": batches}).status_code == 422
    assert client.get("/api/model").json()["version"] == 0


def test_a_huge_body_is_refused_whatever_its_headers_say(client):
    huge = b'{"values": [' + b"1," * MOST_BYTES + b"1]}"
    assert client.post("/api/explain", content=huge, headers=JSON).status_code == 413

    def pieces():
        for _ in range(100):
            yield b" " * 10_000

    assert client.post("/api/explain", content=pieces(), headers=JSON).status_code == 413
    assert client.get("/api/model").status_code == 200


def test_what_changes_something_must_be_json(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = client.post("/api/forget", content=b'{"batches": [0]}', headers={"content-type": kind})
        assert answer.status_code == 415
    assert client.get("/api/model").json()["version"] == 0


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(client, method):
    assert client.request(method, "/api/model").status_code == 405


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "192.168.0.7:8765", "[", "", "127.0.0.1.evil.example"]
)
def test_only_names_of_this_machine_are_answered(client, host):
    assert client.get("/api/model", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://localhost"])
def test_another_site_is_refused(client, origin):
    answer = client.post("/api/forget", json={"batches": [0]}, headers={"origin": origin})
    assert answer.status_code == 403
    assert client.get("/api/model").json()["version"] == 0
    assert "access-control-allow-origin" not in answer.headers


def test_the_page_itself_is_not_another_site(client):
    assert (
        client.post("/api/explain", json={"example": 0}, headers={"origin": "http://127.0.0.1:8765"}).status_code == 200
    )


def test_open_to_a_network_it_answers_to_numbers_but_not_to_foreign_names(session):
    client = TestClient(create_app(session, host="0.0.0.0"), base_url="http://192.168.0.7:8765")
    assert client.get("/api/model").status_code == 200
    assert client.get("/api/model", headers={"host": "evil.example"}).status_code == 400


def at_once(ask):
    """What a hundred threads are answered that all ask at the same time."""
    found = []
    threads = [threading.Thread(target=lambda k=k: found.append(ask(k).status_code)) for k in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_hundred_at_once_are_all_answered(client):
    def ask(k):
        path = ("/api/explain", "/api/forget/preview")[k % 25 == 0]
        return client.post(path, json={"batches": [k % 30]} if k % 25 == 0 else {"example": k})

    assert at_once(ask) == [200] * 100
    assert client.get("/api/model").json()["version"] == 0


def test_a_hundred_hostile_questions_at_once_are_all_refused_and_the_server_goes_on(client):
    bodies = [b'{"values": [NaN]}', b'{"example": "0"}', b"{" * 1000, b" " * (MOST_BYTES + 1), b'{"batches": [true]}']

    def ask(k):
        path = ("/api/explain", "/api/forget", "/api/forget/preview", "/..%2f..%2fetc%2fpasswd")[k % 4]
        return client.post(path, content=bodies[k % 5], headers=JSON)

    found = at_once(ask)
    assert len(found) == 100 and all(400 <= status < 500 for status in found)
    assert client.get("/api/model").json()["version"] == 0
    assert client.post("/api/explain", json={"example": 0}).status_code == 200


@pytest.mark.parametrize("name", ["origin", "host"])
def test_a_header_that_decides_comes_once(client, name):
    own = {"origin": "http://127.0.0.1:8765", "host": "127.0.0.1:8765"}
    other = {"origin": "http://evil.example", "host": "evil.example"}
    headers = [*own.items(), (name, other[name])]
    answer = client.get("/api/model", headers=headers)
    assert answer.status_code == 400
    assert answer.json()["problem"] == "the headers Host, Origin and Content-Length must each come once"
    assert client.get("/api/model", headers=list(own.items())).status_code == 200
