"""Fetches the meta state from another node, if no image of it on this disk verifies.

The log is whole: the votes and acknowledgements of this node are in it, and hold. The replica continues with
that log from the fetched image, which is not older than the beginning of the log.
"""

from collections.abc import Callable, Sequence

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.model.config import Seed
from nodeagent.model.ids import META
from nodeagent.model.jobs import DropStaging, Installed, InstallSnapshot, JobResult, install_area
from nodeagent.model.requests import OfferState, Reply, StateOffered

ASK_AGAIN_MS = 2_000


class MetaFetch:
    """Asks one node after the other until an image is installed.

    Args:
        seeds: the nodes to ask: without the meta state, no other addresses are known.
        base: index of the entry after which the log begins.
        then: takes the image.
    """

    def __init__(
        self,
        effects: EffectQueue,
        seeds: Sequence[Seed],
        base: int,
        then: Callable[[bytes], None],
    ) -> None:
        self._effects = effects
        self._seeds = [s for s in seeds if s.node != effects.owner.node]
        self._base = base
        self._then = then
        self._asked = 0

    def start(self) -> None:
        if not self._seeds:
            return
        seed = self._seeds[self._asked % len(self._seeds)]
        self._asked += 1
        request = OfferState(self._effects.owner.node, self._base)
        self._effects.call((seed.host, seed.port), request, lambda r: self._on_offer(seed, r))

    def _on_offer(self, seed: Seed, reply: Reply) -> None:
        if not isinstance(reply, StateOffered) or reply.index < self._base:
            self._effects.later(ASK_AGAIN_MS, self.start)
            return
        job = InstallSnapshot(META, seed.node, reply.snapshot)
        self._effects.job(job, lambda result: self._on_pulled(seed, reply.snapshot, result))

    def _on_pulled(self, seed: Seed, snapshot: str, result: JobResult) -> None:
        self._effects.remove(DropStaging(install_area(snapshot)))
        if not isinstance(result, Installed):
            self._effects.later(ASK_AGAIN_MS, self.start)
            return
        self._effects.note("meta_fetched", source=seed.node, received=result.bytes_received)
        self._then(result.payload)
