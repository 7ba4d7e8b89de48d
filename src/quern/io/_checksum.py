"""A SHA-256 over a header and the tensors behind it, computed in threads where that is worth it."""

import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor


class Checksum:
    """The checksum of a file whose header is ``start`` and whose tensors, ``size`` bytes, come block by block; with
    ``in_pieces`` the checksum of each ``piece`` of so many bytes stands for it.

    Of a large file it is computed in threads, beside the reading and writing; a few blocks may wait for them.
    """

    def __init__(self, start: bytes, size: int, piece: int, in_pieces: bool) -> None:
        self.digest, self.in_pieces = hashlib.sha256(start), in_pieces
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = ThreadPoolExecutor(min(count, 8) if in_pieces else 1) if size > piece else None
        self.most = 2 * min(count, 8) + 2
        self.waiting: deque[Future[bytes]] = deque()
        self.piece: list[memoryview] = []
        self.bytes = self.room = piece

    def __enter__(self) -> "Checksum":
        return self

    def __exit__(self, *reason: object) -> None:
        if self.threads is not None:
            self.threads.shutdown()

    def add(self, block: memoryview) -> None:
        while block:
            part, block = block[: self.room], block[self.room :]
            self.piece.append(part)
            self.room -= len(part)
            if not self.room:
                self._hand_over()

    def _hand_over(self) -> None:
        task = _sha256 if self.in_pieces else self._go_on
        if self.threads is None:
            self._take(task(self.piece))
        else:
            self.waiting.append(self.threads.submit(task, self.piece))
        self.piece, self.room = [], self.bytes
        if len(self.waiting) > self.most:
            self._take(self.waiting.popleft().result())

    def _go_on(self, piece: list[memoryview]) -> bytes:
        for part in piece:
            self.digest.update(part)
        return b""

    def _take(self, digest: bytes) -> None:
        if digest:
            self.digest.update(digest)

    def hexdigest(self) -> str:
        if self.piece:
            self._hand_over()
        while self.waiting:
            self._take(self.waiting.popleft().result())
        return self.digest.hexdigest()


def _sha256(piece: list[memoryview]) -> bytes:
    digest = hashlib.sha256()
    for part in piece:
        digest.update(part)
    return digest.digest()
