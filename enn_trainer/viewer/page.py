"""HTML page that plays replays: the committed `page.html`, and data blocks inside it.

`make page` builds `page.html` from the folder `page/`. A block is a script element of a type that
browsers do not execute, on one line, in base64, which cannot contain the end of the element.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

HOST = "127.0.0.1"
"""Address of live pages: any client that reaches the page can play."""
DEFAULT_FPS = 10.0
MAX_FPS = 1000.0
EPISODES = 3
MAX_STEPS = 2000
"""Maximal number of displayed steps per episode; each costs space and forward passes."""
PAGE = Path(__file__).with_name("page.html")
_START = b"<!doctype html><!-- replay of enn_trainer -->\n"
_BLOCKS_PLACEHOLDER = b"<!-- blocks -->\n"
_CONTENT_POLICY = b"content=\"default-src 'none'; "
_BLOCK = re.compile(
    rb'^<script type="application/x-enn-replay" data-block="(header|\d{1,9})" '
    rb'data-crc="([0-9a-f]{8})">([A-Za-z0-9+/=]*)</script>$',
    re.MULTILINE,
)


class PageBlock(NamedTuple):
    """Compressed data block.

    Attributes:
        packed: bytes compressed with zlib.
        crc: their CRC-32.
    """

    packed: bytes
    crc: int

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Compress data."""
        packed = zlib.compress(data, 6)
        return cls(packed, zlib.crc32(packed))

    def unpacked(self, max_bytes: int) -> bytes | None:
        """Decompress the data; None if it is damaged, or larger than `max_bytes`."""
        inflater = zlib.decompressobj()
        if zlib.crc32(self.packed) != self.crc:
            return None
        try:
            data = inflater.decompress(self.packed, max_bytes or 1)
        except zlib.error:
            return None
        return data if inflater.eof else None


def fill_page(header: PageBlock, chunks: Sequence[PageBlock]) -> bytes:
    """Insert a header and its chunks into the page."""
    before, after = PAGE.read_bytes().split(_BLOCKS_PLACEHOLDER)
    names = [b"header", *(b"%d" % number for number in range(len(chunks)))]
    lines = map(_line, names, [header, *chunks])
    return b"".join([before, *lines, after])


def live_page(port: int) -> bytes:
    """Return the page without data that connects to the live game at a local port."""
    before, after = PAGE.read_bytes().split(_BLOCKS_PLACEHOLDER)
    sources = b"connect-src ws://127.0.0.1:%d ws://localhost:%d; " % (port, port)
    before = before.replace(_CONTENT_POLICY, _CONTENT_POLICY + sources, 1)
    return b"".join([before, b'<script type="application/x-enn-live"></script>\n', after])


def is_page(start: bytes) -> bool:
    """Return True if a file with these first bytes is a replay page."""
    return start.startswith(_START)


def page_blocks(page: bytes) -> dict[str, PageBlock]:
    """Return the blocks of a page by name: "header", "0", "1", ...; skips incomplete blocks."""
    blocks = {}
    for name, crc, text in _BLOCK.findall(page):
        try:
            packed = base64.b64decode(text, validate=True)
        except binascii.Error:
            continue
        blocks[name.decode()] = PageBlock(packed, int(crc, 16))
    return blocks


def _line(name: bytes, block: PageBlock) -> bytes:
    head = b'<script type="application/x-enn-replay" data-block="%b" data-crc="%08x">'
    return head % (name, block.crc) + base64.b64encode(block.packed) + b"</script>\n"
