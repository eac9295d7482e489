"""Server of a live game for pages on this machine only.

It listens on 127.0.0.1. The first message of a page has to contain a token, which is only in the
fragment of the address, and which browsers never send to a server. Other sites open in the browser
can neither read the page nor open the socket: the headers Host and Origin have to be the server's.
"""

import hmac
import json
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any, final

from enn_trainer.base.errors import ServerError
from enn_trainer.viewer.live import Message
from enn_trainer.viewer.page import HOST, live_page
from entity_env.imports.extras import needs_extra

with needs_extra():
    from websockets.datastructures import Headers
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
    from websockets.sync.server import ServerConnection, serve

MAX_PAGES = 8
MAX_BYTES = 64 * 1024
"""Maximal size of a page's message in bytes."""
MAX_PER_S = 100
"""Maximal number of messages of a page per second."""
HELLO_S = 5.0
"""Timeout in s for the token of a page."""
MAX_PENDING = 16
"""Maximal number of connections without a valid token; beyond it the oldest is closed."""
_MAX_DROPPED = 4  # shut down, but not closed
_AGAIN_S = 0.1  # interval between attempts to accept a connection
_WAITING = 64  # queued messages to a page before steps are dropped
_TOO_MANY = 512  # queued messages to a page before it is closed
_MAX_UNREAD = 1000  # queued messages from pages before more are refused
_POLICY = 1008  # close code: policy violation

_HEADERS = {
    "Connection": "close",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@final
class _Listener(socket.socket):
    """Listening socket that survives failures of single connections.

    Any local process can hold connections open. The number of connections without a valid token is
    limited, so that they never exhaust the descriptors and threads of the process.

    Args:
        port: port of 127.0.0.1; 0 for a free one.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, port: int) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._pending: list[socket.socket] = []
        self._dropped: list[socket.socket] = []
        self._lock = threading.Lock()
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind((HOST, port))
            self.listen()
        except OSError:
            self.close()
            raise
        self.settimeout(_AGAIN_S)  # a connection may be closed before it is accepted

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its address.

        Raises:
            OSError: the socket was closed.
        """
        while True:
            while len(self._dropped) >= _MAX_DROPPED and self.fileno() >= 0:
                time.sleep(_AGAIN_S / 10)  # until their threads have closed some
                self.drop_oldest_beyond(MAX_PENDING)
            try:
                connection, address = super().accept()
                break
            except OSError as error:
                if self.fileno() < 0:
                    raise
                if not isinstance(error, TimeoutError):  # perhaps out of descriptors
                    self.drop_oldest_beyond(MAX_PENDING // 2)
                    time.sleep(_AGAIN_S)
        self.drop_oldest_beyond(MAX_PENDING - 1)
        with self._lock:
            self._pending.append(connection)
        return connection, address

    def admit(self, connection: socket.socket) -> None:
        """Exempt an authenticated connection from the limit."""
        with self._lock:
            self._pending = [one for one in self._pending if one is not connection]

    def drop_oldest_beyond(self, count: int) -> None:
        """Shut down the oldest connections without a valid token, until `count` remain."""
        with self._lock:
            self._pending = [one for one in self._pending if one.fileno() >= 0]
            num_dropped = max(0, len(self._pending) - count)
            dropped, self._pending = (
                self._pending[:num_dropped],
                self._pending[num_dropped:],
            )
            self._dropped = [one for one in self._dropped if one.fileno() >= 0] + dropped
        for connection in dropped:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it

    def close_dropped(self) -> None:
        """Close shut down connections that have no thread to do so."""
        for connection in self._dropped:
            connection.close()


class _Tab:
    """Connected page, with its queue of outgoing messages."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        # Ctrl-C may interrupt `put` anywhere; a SimpleQueue is never left locked.
        self.outbox: queue.SimpleQueue[str] = queue.SimpleQueue()

    def put(self, text: str, can_be_dropped: bool) -> None:
        """Queue a message."""
        if self.outbox.qsize() >= _TOO_MANY:
            self.close("too slow")
        elif not can_be_dropped or self.outbox.qsize() < _WAITING:
            self.outbox.put(text)

    def write(self) -> None:
        """Send queued messages until the connection is closed."""
        with suppress(ConnectionClosed, OSError):
            while (text := self.outbox.get()) != "":
                self.connection.send(text)

    def close(self, reason: str) -> None:
        """Close the connection in the background."""
        arguments = _POLICY, reason
        threading.Thread(target=self.connection.close, args=arguments, daemon=True).start()


class LiveServer:
    """WebSocket server of a live game's pages, a `Link`. Listens from construction on.

    Args:
        port: port of 127.0.0.1; 0 for a free one.

    Attributes:
        port: port of the server.
        token: 32 hexadecimal digits, 128 random bits.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_hex(16)
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._tabs: dict[int, _Tab] = {}
        self._lock = threading.Lock()
        self._next = 0
        logger = logging.getLogger(__name__)
        logger.propagate, logger.disabled = False, True  # do not log refused connections
        self._listener = _Listener(port)
        self._server = serve(
            self._follow,
            sock=self._listener,
            process_request=self._answer,
            compression=None,
            max_size=MAX_BYTES,
            open_timeout=HELLO_S,
            close_timeout=1,
            server_header=None,
            logger=logger,
        )
        self.port = int(self._listener.getsockname()[1])
        self._page = live_page(self.port)
        self._problem = ""
        self._thread = threading.Thread(target=self._serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Address to open in a browser, with the token."""
        return f"http://{HOST}:{self.port}/#t={self.token}"

    def _serve_forever(self) -> None:
        try:
            self._server.serve_forever()
        except Exception as error:  # such as a thread that cannot be started
            self._problem = f": {error}"

    def receive(self, timeout_s: float) -> tuple[int, Message] | None:
        """Return the next message and its page number; None on timeout.

        Raises:
            ServerError: the server has stopped.
        """
        if not self._thread.is_alive():
            raise ServerError(
                f"the server at port {self.port} has stopped{self._problem}; restart it"
            )
        with suppress(queue.Empty):
            return self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        return None

    def send(self, message: Message, pages: Collection[int]) -> None:
        """Send a message to some pages without blocking."""
        text = json.dumps(message, allow_nan=False, separators=(",", ":"))
        with self._lock:
            tabs = [tab for number, tab in self._tabs.items() if number in pages]
        for tab in tabs:
            tab.put(text, can_be_dropped=message["type"] == "steps")

    def _follow(self, connection: ServerConnection) -> None:
        """Exchange messages with a page until either side closes the connection."""
        with suppress(ConnectionClosed, TimeoutError, OSError):
            connection.close(_POLICY, self._exchange(connection))

    def _exchange(self, connection: ServerConnection) -> str:
        """Exchange messages with a page, and return the rule that it violated."""
        hello = _message(connection.recv(timeout=HELLO_S)) or {}
        token = str(hello.get("token")).encode("utf-8", "replace")
        if not hmac.compare_digest(token, self.token.encode()):
            return "expected the token of the address that the terminal shows"
        with self._lock:
            if len(self._tabs) >= MAX_PAGES:
                return f"expected at most {MAX_PAGES} tabs"
            number, tab = self._next, _Tab(connection)
            self._next += 1
            self._tabs[number] = tab
        self._listener.admit(connection.socket)
        try:
            threading.Thread(target=tab.write, daemon=True).start()
            self._inbox.put((number, {"type": "joined"}))
            began_s, count = time.monotonic(), 0
            while True:
                message = _message(connection.recv())
                now_s, count = time.monotonic(), count + 1
                if now_s - began_s > 1:
                    began_s, count = now_s, 1
                if count > MAX_PER_S or self._inbox.qsize() >= _MAX_UNREAD:
                    return f"expected at most {MAX_PER_S} messages a second"
                if message is None or message.get("type") in ("joined", "left"):
                    tab.put('{"type":"error","text":"expected an object with a type"}', False)
                    continue
                self._inbox.put((number, message))
        finally:
            with self._lock:
                del self._tabs[number]
            tab.outbox.put("")
            self._inbox.put((number, {"type": "left"}))

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return the page or an error response; None to accept a WebSocket."""
        hosts = [f"{HOST}:{self.port}", f"localhost:{self.port}"]
        [host, *more] = request.headers.get_all("Host") or [""]
        if more or host not in hosts:
            return _response(403, b"expected another Host")
        if request.path == "/live":
            is_ours = request.headers.get_all("Origin") == [f"http://{host}"]
            return None if is_ours else _response(403, b"expected another Origin")
        if request.path == "/":
            return _response(200, self._page, "text/html; charset=utf-8")
        return _response(404, b"not found")

    def close(self) -> None:
        """Close all connections and stop the server."""
        self._listener.drop_oldest_beyond(0)
        if not self._thread.is_alive():  # threads that failed to start never end
            threads: set[threading.Thread] = getattr(self._server, "handler_threads", set())
            threads -= {thread for thread in threads if not thread.is_alive()}
        self._server.shutdown()
        self._listener.close_dropped()
        with self._lock:
            tabs = list(self._tabs.values())
        for tab in tabs:
            tab.close("the server has ended")
        self._thread.join()


def _message(data: str | bytes) -> Message | None:
    """Parse a message; None if it is not a JSON object in text."""
    with suppress(ValueError, RecursionError):
        message = json.loads(data) if isinstance(data, str) else None
        return message if isinstance(message, dict) else None
    return None


def _response(status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> Response:
    headers = {"Content-Type": kind, "Content-Length": str(len(body))}
    return Response(status, "", Headers({**headers, **_HEADERS}), body)
