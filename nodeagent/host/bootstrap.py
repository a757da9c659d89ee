"""The first entry of a new meta group, with which its first leader creates the cluster."""

from collections.abc import Callable

import msgspec

from nodeagent.host.admission import Admission, first_ring
from nodeagent.host.cluster import Cluster
from nodeagent.host.context import Context
from nodeagent.meta import commands as meta
from nodeagent.model.features import Feature
from nodeagent.partition.table import initial_table

AGAIN_MS = 200
"""The wait before a leader asks again the seeds that have not answered, or whose answers refuse it."""


class Bootstrap:
    """
    Args:
        again: calls `propose` again if the entry is still due.
    """

    def __init__(
        self, context: Context, cluster: Cluster, admission: Admission, again: Callable[[], None]
    ) -> None:
        self._context = context
        self._cluster = cluster
        self._admission = admission
        self._again = again
        self._is_waiting = False

    @property
    def is_due(self) -> bool:
        return self._cluster.is_led_here and not self._cluster.id

    def propose(self) -> None:
        context, replica = self._context, self._cluster.meta_replica
        assert replica is not None
        if not self._admission.ask_missing():
            if not self._is_waiting:
                self._is_waiting = True
                context.effects.later(AGAIN_MS, self._waited)
            return
        settings = context.config.cluster
        table = initial_table(first_ring(context.config), settings.slots)
        nodes = self._admission.records()
        level = context.levels.common(nodes)
        if level < Feature.ZONES:
            nodes = tuple(msgspec.structs.replace(n, zone="") for n in nodes)
        command = meta.Bootstrap(
            context.effects.wall, context.new_id(), settings, nodes, table.to_wire(), level
        )
        replica.propose([meta.encode(command)])

    def _waited(self) -> None:
        self._is_waiting = False
        self._again()
