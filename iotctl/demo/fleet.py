"""The demo's cluster: a local fleet, and connections to it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from iotctl.demo.log import DemoLog
from iotctl.fleet.local import LocalFleet
from iotctl.lifecycle.startup import wait_healthy
from iotctl.observe.cluster import Cluster, cluster_spec, connect
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.config import ClusterSettings

if TYPE_CHECKING:
    from nodeagent.client.spec import ClusterSpec

UP_TIMEOUT_S = 60.0


class DemoFleet:
    """The fleet, with one connection that is opened on demand and kept."""

    def __init__(self, fleet: LocalFleet, log: DemoLog) -> None:
        self.local = fleet
        self._log = log
        self._cluster: Cluster | None = None

    def start(self, nodes: int, replicas: int) -> None:
        """Create and start the fleet, and wait until it is healthy."""
        settings = ClusterSettings(name="demo", replicas=replicas)
        self._log.say(f"starting {nodes} agents on loopback, TLS on, in {self.local.directory}")
        self.local.create(settings, nodes, node_settings={})
        self.local.start()
        wait_healthy(
            self.cluster,
            self.source(),
            on_status=lambda s: self._log.progress(
                "nodes answering", sum(n.reachable for n in s.nodes), len(s.nodes)
            ),
            timeout_s=UP_TIMEOUT_S,
            fleet=self.local,
        )

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self.connect()
        return self._cluster

    @property
    def identity(self) -> Path:
        return self.local.directory / "operator"

    def source(self) -> ClusterSource:
        return self.local.source()

    def spec(self) -> "ClusterSpec":
        return cluster_spec(self.source(), self.identity, os.environ)

    def connect(self) -> Cluster:
        """A new connection; close it after use."""
        return connect(self.spec())

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
