"""Images of the meta state and the log that is retained for them."""

from nodeagent.model.entries import Config
from nodeagent.model.jobs import Done, ImageSaved, SaveImage
from nodeagent.model.requests import Drain
from tests.host.test_meta_recovery import host_of


def test_the_log_is_retained_from_the_older_image_on() -> None:
    host = host_of(Config(("a",)))
    replica = host.cluster.meta_replica
    assert replica is not None
    saved, bases = [0], set[int]()
    for turn, now in enumerate(range(0, 60_000, 250)):
        host.tick(now, now)
        if replica.leads and turn % 4 == 0:
            host.on_request(turn, Drain("a", turn % 8 == 0, "ann"), now, now)
        for _ in range(10):
            effects = host.take()
            if effects.persist is not None:
                host.on_persisted(effects.persist[0], now)
            for number, job in effects.jobs:
                result: Done | ImageSaved = Done()
                if isinstance(job, SaveImage):
                    result = ImageSaved(saved[-1])
                    saved.append(job.header.base.index)
                host.on_job(number, result, now)
        base = replica.raft.log.base.index
        bases.add(base)
        assert len(saved) < 3 or base <= saved[-2], "the older image could not be continued"
    assert len(saved) > 5 and len(bases) > 3, "images were saved, and the log was purged"
