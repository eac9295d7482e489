"""Server of a live game for pages on this machine, and nobody else.

It listens on 127.0.0.1. A page has to show, in its first message, a token that is in the fragment
of the address alone, which browsers send to no server. Other sites that a browser shows can neither
read the page nor open the socket: the headers Host and Origin have to be the server's own.
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
from enn_trainer.viewer.live import HOST, Message
from enn_trainer.viewer.page import live_page
from entity_env.imports.extras import needs_extra

with needs_extra():
    from websockets.datastructures import Headers
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
    from websockets.sync.server import ServerConnection, serve

MOST_PAGES = 8
MOST_BYTES = 64 * 1024
"""Maximal size of a message of a page."""
MOST_PER_S = 100
"""Maximal number of messages of a page in a second."""
HELLO_S = 5.0
"""Time in which a page has to show the token."""
MOST_UNKNOWN = 16
"""Maximal number of connections without the token; beyond it the oldest is closed."""
_MOST_DROPPED = 4  # connections that are not closed yet
_AGAIN_S = 0.1  # between two tries to accept a connection
_WAITING = 64  # messages to a page from which on steps are dropped
_TOO_MANY = 512  # messages to a page at which it is closed
_MOST_UNREAD = 1000  # messages of pages from which on more are refused
_POLICY = 1008  # the status of a closed socket: the page broke a rule

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
    """Socket that listens until it is closed, whatever happens to single connections.

    Whoever can connect can hold connections open. Those that have not shown the token are few, so
    that they never take all descriptors and threads of the process.

    Args:
        port: of 127.0.0.1; 0 for a free one.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._unknown: list[socket.socket] = []
        self._dropped: list[socket.socket] = []
        self._lock = threading.Lock()
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind((HOST, port))
            self.listen()
        except OSError:
            self.close()
            raise
        self.settimeout(_AGAIN_S)  # a connection may be gone before it is accepted

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its address, as soon as it can be accepted.

        Raises:
            OSError: the socket was closed.
        """
        while True:
            while len(self._dropped) >= _MOST_DROPPED and self.fileno() >= 0:
                time.sleep(_AGAIN_S / 10)  # until their threads have closed some
                self.drop_all_but(MOST_UNKNOWN)
            try:
                connection, address = super().accept()
                break
            except OSError as error:
                if self.fileno() < 0:
                    raise
                if not isinstance(error, TimeoutError):  # no descriptors are left, perhaps
                    self.drop_all_but(MOST_UNKNOWN // 2)
                    time.sleep(_AGAIN_S)
        self.drop_all_but(MOST_UNKNOWN - 1)
        with self._lock:
            self._unknown.append(connection)
        return connection, address

    def admit(self, connection: socket.socket) -> None:
        """Keep a connection that has shown the token."""
        with self._lock:
            self._unknown = [one for one in self._unknown if one is not connection]

    def drop_all_but(self, count: int) -> None:
        """End connections without the token, the oldest first, until so many are left."""
        with self._lock:
            self._unknown = [one for one in self._unknown if one.fileno() >= 0]
            num_dropped = max(0, len(self._unknown) - count)
            dropped, self._unknown = self._unknown[:num_dropped], self._unknown[num_dropped:]
            self._dropped = [one for one in self._dropped if one.fileno() >= 0] + dropped
        for one in dropped:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it

    def close_dropped(self) -> None:
        """Close the connections that have no thread to do so."""
        for one in self._dropped:
            one.close()


class _Tab:
    """A page that follows the game, with the messages that it has not taken yet."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        # Ctrl-C may interrupt a `put` anywhere; a SimpleQueue is not left locked then.
        self.outbox: queue.SimpleQueue[str] = queue.SimpleQueue()

    def put(self, text: str, can_be_dropped: bool) -> None:
        """Send a message when the page is ready for it."""
        if self.outbox.qsize() >= _TOO_MANY:
            self.close("too slow")
        elif not can_be_dropped or self.outbox.qsize() < _WAITING:
            self.outbox.put(text)

    def write(self) -> None:
        """Send messages until the connection is closed."""
        with suppress(ConnectionClosed, OSError):
            while (text := self.outbox.get()) != "":
                self.connection.send(text)

    def close(self, reason: str) -> None:
        """Close the connection, without waiting for the page."""
        arguments = _POLICY, reason
        threading.Thread(target=self.connection.close, args=arguments, daemon=True).start()


class LiveServer:
    """Pages that are connected by sockets; the `Link` of a live game. It listens at once.

    Args:
        port: of 127.0.0.1; 0 for a free one.

    Attributes:
        port: on which it listens.
        token: 32 hexadecimal digits, 128 random bits.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_hex(16)
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._tabs: dict[int, _Tab] = {}
        self._lock = threading.Lock()
        self._next = 0
        logger = logging.getLogger(__name__)
        logger.propagate, logger.disabled = False, True  # refused connections are no news
        self._listener = _Listener(port)
        self._server = serve(
            self._follow,
            sock=self._listener,
            process_request=self._answer,
            compression=None,
            max_size=MOST_BYTES,
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
        """The address to open, with the token."""
        return f"http://{HOST}:{self.port}/#t={self.token}"

    def _serve_forever(self) -> None:
        try:
            self._server.serve_forever()
        except Exception as error:  # such as a thread that cannot be started
            self._problem = f": {error}"

    def receive(self, timeout_s: float) -> tuple[int, Message] | None:
        """Return the next message and its page; None if there is none in time.

        Raises:
            ServerError: it does not listen any more.
        """
        if not self._thread.is_alive():
            raise ServerError(
                f"the server at port {self.port} does not listen any more{self._problem}; start "
                "it again"
            )
        with suppress(queue.Empty):
            return self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        return None

    def send(self, message: Message, pages: Collection[int]) -> None:
        """Send a message to some pages; never wait for one."""
        text = json.dumps(message, allow_nan=False, separators=(",", ":"))
        with self._lock:
            tabs = [tab for number, tab in self._tabs.items() if number in pages]
        for tab in tabs:
            tab.put(text, can_be_dropped=message["type"] == "steps")

    def _follow(self, connection: ServerConnection) -> None:
        """Exchange messages with a page until one of both closes the connection."""
        with suppress(ConnectionClosed, TimeoutError, OSError):
            connection.close(_POLICY, self._exchange(connection))

    def _exchange(self, connection: ServerConnection) -> str:
        """Exchange messages with a page, and return the rule that it broke."""
        hello = _message(connection.recv(timeout=HELLO_S)) or {}
        token = str(hello.get("token")).encode("utf-8", "replace")
        if not hmac.compare_digest(token, self.token.encode()):
            return "expected the token of the address that the terminal shows"
        with self._lock:
            if len(self._tabs) >= MOST_PAGES:
                return f"expected at most {MOST_PAGES} tabs"
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
                if count > MOST_PER_S or self._inbox.qsize() >= _MOST_UNREAD:
                    return f"expected at most {MOST_PER_S} messages a second"
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
        """Return the page, or a refusal; None for a socket that may be opened."""
        own = [f"{HOST}:{self.port}", f"localhost:{self.port}"]
        [host, *more] = request.headers.get_all("Host") or [""]
        if more or host not in own:
            return _response(403, b"expected another Host")
        if request.path == "/live":
            is_ours = request.headers.get_all("Origin") == [f"http://{host}"]
            return None if is_ours else _response(403, b"expected another Origin")
        if request.path == "/":
            return _response(200, self._page, "text/html; charset=utf-8")
        return _response(404, b"not found")

    def close(self) -> None:
        """Close all connections, and listen no more."""
        self._listener.drop_all_but(0)
        if not self._thread.is_alive():  # threads that could not be started never end
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
    """Return a message; None for one that is no JSON object in text."""
    with suppress(ValueError, RecursionError):
        message = json.loads(data) if isinstance(data, str) else None
        return message if isinstance(message, dict) else None
    return None


def _response(status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> Response:
    own = {"Content-Type": kind, "Content-Length": str(len(body))}
    return Response(status, "", Headers({**own, **_HEADERS}), body)
