"""A page to explore a model with: its parts, its answers, its training, and what it can forget.

Needs FastAPI, uvicorn and scikit-learn: `pip install "torchpfc[explorer]"`.
"""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "explore"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8765


def explore(
    model: Path | None = None,
    data: str | None = None,
    *,
    shape: tuple[int, int] | None = None,
    data_dir: Path | None = None,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Loads a model and answers for it on a local page until it is interrupted.

    Args:
        model: A folder of `save_pretrained` or `save_model`; None trains a model on digits.
        data: Examples: the name of an image set, or an .npz file. None takes what the model itself brings.
        shape: Rows and columns of an image, where that is not clear.
        data_dir: The folder of data sets.
        host: Where to listen. Addresses other than those of loopback let other machines in.
        port: Where to listen; 0 takes one that is free.
        browser: Whether to open the page.
        say: Is told what is going on.

    Raises:
        CorruptFileError: Where there is no such model.
        DataError: Where there are no such examples, or they do not fit.
        OSError: Where nothing can listen there.
    """
    import uvicorn

    from torchpfc.explorer.guard import is_loopback
    from torchpfc.explorer.loading import load
    from torchpfc.explorer.protocol import ImpatientProtocol
    from torchpfc.explorer.server import create_app
    from torchpfc.explorer.session import Session

    with listen(host, port) as listener:  # first: a port that is taken should not cost the time of loading
        if model is None:
            say("Training a model on handwritten digits, class by class ...")
        session = Session(load(model, data, shape=shape, data_dir=data_dir))
        found = session.model()
        app = create_app(session, host=host)
        server = uvicorn.Server(uvicorn.Config(app, http=ImpatientProtocol, log_level="warning", access_log=False))
        address = page_address(host, listener.getsockname()[1])
        say(f"{found.kind} with {found.num_parts} parts, {found.num_examples} examples ({found.source})")
        if not is_loopback(host):
            say("Other machines can reach this page: whoever does can use it, and see the examples.")
        say(f"Open {address} (Ctrl-C ends it)")
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # how it is meant to end
            server.run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Args:
        host: An address or a name.
        port: 0 for one that is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {host}, port {port}: {reason}; choose another --port") from None
    # An answer is sent in two pieces; without this, the second waits 40 ms for somebody to acknowledge the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def page_address(host: str, port: int) -> str:
    """The address of the page.

    Example:
        >>> page_address("127.0.0.1", 8765), page_address("::1", 80), page_address("0.0.0.0", 80)
        ('http://127.0.0.1:8765/', 'http://[::1]:80/', 'http://127.0.0.1:80/')
    """
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"
