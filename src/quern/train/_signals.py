"""Being asked to stop."""

import signal
import threading
from typing import Any


class Signals:
    """While entered, Ctrl-C and SIGTERM are noted in ``received``; a second Ctrl-C ends the program at once. Only the
    main thread is told of signals, so in any other this does nothing."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, _: object) -> None:
        if number == self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number  # a SIGTERM may come from a scheduler and from torchrun
