"""The server of a live game is open to pages that have its token, and to nobody else."""

import errno
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from enn_trainer.base.errors import ServerError
from enn_trainer.viewer import serve
from enn_trainer.viewer.live import Message

websockets = pytest.importorskip("websockets")
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402
from websockets.sync.client import connect  # noqa: E402


@pytest.fixture
def server() -> Iterator[serve.LiveServer]:
    with closing(serve.LiveServer()) as live:
        yield live


def opened(server: serve.LiveServer, **options: Any) -> Any:
    own = f"127.0.0.1:{server.port}"
    return connect(f"ws://{own}/live", origin=options.pop("origin", f"http://{own}"), **options)


def hello(server: serve.LiveServer) -> str:
    return json.dumps({"type": "hello", "token": server.token})


def exchanged(page: Any, messages: list[str]) -> None:
    """Send messages, and take the next one that comes back."""
    for message in messages:
        page.send(message)
    page.recv(timeout=10)


def got(server: serve.LiveServer, kind: str) -> tuple[int, Message]:
    """Return the next message of a kind that the server received."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        received = server.receive(1)
        if received is not None and received[1]["type"] == kind:
            return received
    raise AssertionError(kind)


def http(server: serve.LiveServer, lines: list[str]) -> tuple[str, bytes]:
    """Return head and body of the answer to a request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plug:
        plug.sendall("\r\n".join([*lines, "", ""]).encode())
        data = b"".join(iter(lambda: plug.recv(65536), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode(), body


def test_live_page_has_no_data_and_connects_only_to_its_server(server: serve.LiveServer) -> None:
    head, body = http(server, ["GET / HTTP/1.1", f"Host: 127.0.0.1:{server.port}"])
    assert head.startswith("HTTP/1.1 200")
    assert "frame-ancestors 'none'" in head
    assert "access-control" not in head.lower()
    assert "cookie" not in head.lower()
    assert server.token.encode() not in body
    policy = f"default-src 'none'; connect-src ws://127.0.0.1:{server.port} "
    assert policy.encode() in body
    assert b'<script type="application/x-enn-live"></script>' in body
    assert b"data-block=" not in body.split(b"<script>")[0]


def test_token_is_only_in_the_fragment_of_the_address(server: serve.LiveServer) -> None:
    before, _, fragment = server.address.partition("#")
    assert before == f"http://127.0.0.1:{server.port}/"
    assert fragment == f"t={server.token}"
    assert len(bytes.fromhex(server.token)) * 8 == 128
    with closing(serve.LiveServer()) as other:
        assert other.token != server.token


def test_server_listens_on_localhost_only(server: serve.LiveServer) -> None:
    assert server._server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", "[::1]:{port}"]
)
def test_requests_with_other_hosts_are_rejected(server: serve.LiveServer, host: str) -> None:
    """Also where another name leads to this machine."""
    head, body = http(server, ["GET / HTTP/1.1", "Host: " + host.format(port=server.port)])
    assert head.startswith("HTTP/1.1 403")
    assert body == b"expected another Host"


def test_other_paths_are_not_found(server: serve.LiveServer) -> None:
    head, _ = http(server, ["GET /../etc/passwd HTTP/1.1", f"Host: 127.0.0.1:{server.port}"])
    assert head.startswith("HTTP/1.1 404")


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1"]
)
def test_sockets_of_other_origins_are_rejected(
    server: serve.LiveServer, origin: str | None
) -> None:
    given = None if origin is None else origin.format(port=server.port)
    with pytest.raises(InvalidStatus, match="403"), opened(server, origin=given):
        pass


@pytest.mark.parametrize(
    "first",
    [
        '{"type": "hello", "token": "00000000000000000000000000000000"}',
        '{"type": "hello"}',
        '{"type": "hello", "token": ["a"]}',
        '{"type": "hello", "token": "ä"}',
        '{"type": "hello", "token": "\\ud800"}',
        '{"type": "take", "side": 0}',
        "[]",
        "{",
        "[" * 60_000,
        b"\x00",
    ],
)
def test_socket_without_the_token_is_closed(server: serve.LiveServer, first: str | bytes) -> None:
    with opened(server) as page:
        page.send(first)
        with pytest.raises(ConnectionClosed) as closed:
            page.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert server.receive(0.2) is None


def test_silent_socket_is_closed(server: serve.LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HELLO_S", 0.2)
    with opened(server) as page, pytest.raises(ConnectionClosed):
        page.recv(timeout=10)


def test_silent_connections_do_not_block_new_ones(server: serve.LiveServer) -> None:
    """Whoever can connect can hold connections: the oldest without the token make room."""
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    try:
        with opened(server) as page:
            page.send(hello(server))
            number, _ = got(server, "joined")
            more = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
            silent += more
            page.send('{"type": "agent"}')
            assert got(server, "agent")[0] == number, "the tab with the token stays"
        assert len(server._listener._pending) <= serve.MAX_PENDING
        silent[0].settimeout(10)
        assert silent[0].recv(1) == b"", "it was closed"
    finally:
        for plug in silent:
            plug.close()


def test_server_survives_failed_accepts(
    server: serve.LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, errors = socket.socket.accept, [errno.EMFILE, errno.ECONNABORTED, errno.ENOBUFS]

    def sometimes(listener: socket.socket) -> Any:
        if errors:
            raise OSError(errors.pop(), "no")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", sometimes)
    with opened(server) as page:
        page.send(hello(server))
        got(server, "joined")
    assert not errors


def test_stopped_server_raises_server_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server, start = serve.LiveServer(), threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if thread.name.endswith("(sock_handler)"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", failing)
        with socket.create_connection(("127.0.0.1", server.port)):
            server._thread.join(10)
    with pytest.raises(ServerError, match=r"has stopped: can't start new thread; restart"):
        server.receive(0)
    ending = threading.Thread(target=server.close, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()


def test_server_closes_immediately_with_silent_connections() -> None:
    server = serve.LiveServer()
    with socket.create_connection(("127.0.0.1", server.port)), opened(server):
        start = time.monotonic()
        server.close()
        assert time.monotonic() - start < serve.HELLO_S


def test_messages_are_exchanged_and_closing_a_tab_is_reported(server: serve.LiveServer) -> None:
    with opened(server) as page:
        page.send(hello(server))
        number, _ = got(server, "joined")
        page.send('{"type": "take", "side": 0}')
        assert got(server, "take") == (number, {"type": "take", "side": 0})
        server.send({"type": "places", "places": []}, [number])
        assert json.loads(page.recv(timeout=10)) == {"type": "places", "places": []}
    assert got(server, "left")[0] == number


@pytest.mark.parametrize("text", ["nonsense", "[]", "7", '{"type": "joined"}', b"\x01\x02"])
def test_malformed_messages_get_errors_and_keep_the_tab(
    server: serve.LiveServer, text: str | bytes
) -> None:
    with opened(server) as page:
        page.send(hello(server))
        got(server, "joined")
        page.send(text)
        assert json.loads(page.recv(timeout=10))["type"] == "error"
        page.send('{"type": "agent"}')
        got(server, "agent")


def test_large_message_closes_the_tab(server: serve.LiveServer) -> None:
    with opened(server) as page:
        page.send(hello(server))
        got(server, "joined")
        with pytest.raises(ConnectionClosed) as closed:
            exchanged(page, ["x" * 2**20])
        got(server, "left")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_too_many_messages_close_the_tab(server: serve.LiveServer) -> None:
    with opened(server) as page:
        page.send(hello(server))
        got(server, "joined")
        with pytest.raises(ConnectionClosed) as closed:
            exchanged(page, ['{"type": "agent"}'] * 10 * serve.MAX_PER_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.reason == "expected at most 100 messages a second"
    taken = 0
    while (received := server.receive(0.5)) is not None and received[1]["type"] != "left":
        taken += 1
    assert taken <= serve.MAX_PER_S


def test_ninth_tab_is_rejected_until_a_tab_closes(server: serve.LiveServer) -> None:
    tabs = [opened(server).__enter__() for _ in range(serve.MAX_PAGES)]
    for tab in tabs:
        tab.send(hello(server))
        got(server, "joined")
    with opened(server) as ninth:
        ninth.send(hello(server))
        with pytest.raises(ConnectionClosed, match="at most 8 tabs"):
            ninth.recv(timeout=10)
    tabs.pop().close()
    got(server, "left")
    with opened(server) as ninth:
        ninth.send(hello(server))
        got(server, "joined")
    for tab in tabs:
        tab.close()


@pytest.mark.slow
def test_slow_tab_misses_steps_without_blocking(server: serve.LiveServer) -> None:
    steps = [{"type": "steps", "first": i, "raw": "x" * 50_000} for i in range(1_000)]
    with opened(server, max_queue=1) as slow, opened(server) as quick:
        numbers = []
        for page in (slow, quick):
            page.send(hello(server))
            numbers.append(got(server, "joined")[0])
        seen: list[Message] = []

        def read() -> None:
            while not seen or seen[-1]["type"] != "end":
                seen.append(json.loads(quick.recv(timeout=20)))

        reader = threading.Thread(target=read)
        reader.start()
        start = time.monotonic()
        for message in steps:
            server.send(message, numbers)
            time.sleep(0.001)
        assert time.monotonic() - start < 10
        server.send({"type": "end"}, numbers)
        reader.join()
        missed = [json.loads(slow.recv(timeout=20)) for _ in range(2)]
        while missed[-1]["type"] != "end":
            missed.append(json.loads(slow.recv(timeout=20)))
    assert len(missed) < len(steps)
    assert [m["first"] for m in missed[:-1]] == sorted(m["first"] for m in missed[:-1])


@pytest.mark.slow
def test_signal_during_a_message_leaves_no_lock() -> None:
    """Ctrl-C may end the server anywhere; its threads then need unlocked queues to end."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    connection: Any = None  # as nothing is written
    tab = serve._Tab(connection)
    handler = signal.signal(signal.SIGVTALRM, stop)
    try:
        for _ in range(100):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_VIRTUAL, 1e-4)
                while True:
                    tab.put("a step", False)
                    tab.outbox.get_nowait()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
    other = threading.Thread(target=tab.put, args=("the last one", False), daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()


def test_server_closes_with_unread_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_PER_S", 10_000)
    server = serve.LiveServer()
    with opened(server) as page:
        page.send(hello(server))
        with suppress(ConnectionClosed):
            for _ in range(1500):
                page.send('{"type": "pause"}')
        ending = threading.Thread(target=server.close, daemon=True)
        ending.start()
        ending.join(20)
        assert not ending.is_alive()


def test_port_in_use_is_an_error(server: serve.LiveServer) -> None:
    with pytest.raises(OSError, match="in use"):
        serve.LiveServer(server.port)
