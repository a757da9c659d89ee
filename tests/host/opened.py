"""The state of a node after its start."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.host.context import NodeRun
from nodeagent.host.found import Lost
from nodeagent.host.host import Host
from nodeagent.host.opening import Held, open_host
from nodeagent.model.config import NodeConfig


def opened(
    config: NodeConfig,
    groups: Mapping[str, Any],
    damaged: Sequence[Lost] = (),
    *,
    start: int = 0,
    **held: Any,
) -> Host:
    """A node with `config`, started in a directory of incarnation i with `groups`; `held` as in `Held`."""
    life = NodeRun(config, "i", random.Random(1), 0, 0, start)
    return open_host(life, Held(groups, damaged, **held))
