import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

import torchpfc.explorer
from torchpfc.cli import main
from torchpfc.explorer import DEFAULT_HOST, explore, listen, page_address
from torchpfc.explorer.guard import is_loopback, is_own_name


def test_it_listens_on_loopback_unless_told_otherwise(monkeypatch):
    assert is_loopback(DEFAULT_HOST)
    calls = []
    monkeypatch.setattr(torchpfc.explorer, "explore", lambda *args, **kwargs: calls.append((args, kwargs)))
    assert main(["explore", "--no-browser"]) == 0
    (model, data), options = calls[0]
    assert (model, data, options["browser"], options["host"]) == (None, None, False, DEFAULT_HOST)
    assert options["port"] == torchpfc.explorer.DEFAULT_PORT


def test_the_socket_is_open_on_one_address_only():
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_no_answer_waits_for_an_acknowledgement():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("header", "host", "own"),
    [
        ("127.0.0.1:8765", "127.0.0.1", True),
        ("[::1]:8765", "::1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("box.lan:80", "box.lan", True),
        ("other.lan:80", "box.lan", False),
        ("[::1", "127.0.0.1", False),
    ],
)
def test_names_of_this_machine(header, host, own):
    assert is_own_name(header, host) is own


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere"], "the model must be a folder that save_pretrained or save_model wrote, got 'nowhere'"),
        (["--data", "digits"], "--data must come with a model"),
        (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1, port 8765"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_what_cannot_start_says_why(arguments, problem, capsys):
    assert main(["explore", "--no-browser", *(["--port", "0"] if "--host" not in arguments else []), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"torchpfc explore: {problem}")
    assert error.count("\n") == 1


def test_a_port_that_is_taken_says_so(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["explore", "--no-browser", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--port", "x"], ["--port", "65536"], ["--shape", "8"], ["--shape", "0x8"]])
def test_options_are_checked(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["explore", *option])
    assert stop.value.code == 2
    assert "must be" in capsys.readouterr().err


def test_a_missing_extra_is_named(monkeypatch, capsys):
    def missing(*_, **__):
        raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")

    monkeypatch.setattr(torchpfc.explorer, "explore", missing)
    assert main(["explore"]) == 2
    assert 'pip install "torchpfc[explorer]"' in capsys.readouterr().err


def test_explore_says_where_the_page_is_opens_it_and_warns_of_others(monkeypatch, loaded):
    import uvicorn

    said, opened = [], []

    def run(self, sockets):
        assert sockets[0].getsockname()[1] > 0
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr("torchpfc.explorer.loading.ready_model", lambda: loaded)
    monkeypatch.setattr("webbrowser.open", opened.append)
    explore(port=0, say=said.append)
    assert said[-1].startswith("Open http://127.0.0.1:")
    for _ in range(100):
        if opened:
            break
        time.sleep(0.01)
    assert opened[0] in said[-1]
    assert not any("Other machines" in text for text in said)
    explore(port=0, host="0.0.0.0", browser=False, say=said.append)
    assert any("Other machines" in text for text in said)
    assert len(opened) == 1


def test_addresses_of_the_page():
    assert page_address("::", 1) == "http://[::1]:1/"


def test_it_answers_over_a_real_connection(monkeypatch, loaded):
    import uvicorn

    servers, said = [], []

    def remembered(config):
        servers.append(make(config))
        return servers[0]

    make = uvicorn.Server
    monkeypatch.setattr(uvicorn, "Server", remembered)
    monkeypatch.setattr("torchpfc.explorer.loading.ready_model", lambda: loaded)
    thread = threading.Thread(target=explore, kwargs={"port": 0, "browser": False, "say": said.append})
    thread.start()
    while len(said) < 3:
        time.sleep(0.01)
    try:
        with urllib.request.urlopen(said[2].split()[1], timeout=30) as answer:
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert b"torchpfc explorer" in answer.read()
    finally:
        servers[0].should_exit = True
        thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.mark.slow
def test_the_command_answers_until_it_is_interrupted():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torchpfc", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            lines = [server.stdout.readline() for _ in range(3)]
            address = lines[2].split()[1]
            with urllib.request.urlopen(address + "api/model", timeout=30) as answer:
                assert b"PFCClassifier" in answer.read()
            server.send_signal(2)
            assert server.wait(timeout=30) == 0
            assert server.stderr.read() == ""
        finally:
            server.kill()
