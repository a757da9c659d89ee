"""What is held for a time and renewed by a thread, so that it lapses when its holder dies."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from nodeagent.model.errors import Busy, NodeAgentError, Refused

RENEWALS_PER_TTL = 3


class Renewal:
    """Calls `renew` from `__enter__` to `__exit__`; `lost` names why it is not held any more."""

    def __init__(self, renew: Callable[[], object], ttl_ms: int, name: str) -> None:
        self._renew = renew
        self._every_s = ttl_ms / 1000 / RENEWALS_PER_TTL
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.lost = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._renew()
            except (Busy, Refused) as error:
                self.lost = error.what
                return
            except NodeAgentError:
                continue  # the next renewal is still in time
