"""The JSON Schema of `cluster.yaml`, made from the structs that read it. Pure."""

from typing import Any

import msgspec

from iotctl.spec.cluster import API_VERSION, SECTION_BOUNDS, TRANSPORTS, ClusterFile
from nodeagent.model.limits import NODES_MAX


def cluster_schema() -> dict[str, Any]:
    """JSON Schema 2020-12. It cannot express checks of the whole file, such as duplicate names."""
    schema = msgspec.json.schema(ClusterFile)
    parts = schema["$defs"]
    for part in parts.values():
        part["additionalProperties"] = False
    top, section = parts["ClusterFile"]["properties"], parts["ClusterSection"]["properties"]
    top["apiVersion"] = {"const": API_VERSION}
    top["nodes"] |= {"minItems": 1, "maxItems": NODES_MAX}
    parts["Defaults"]["properties"]["transport"]["enum"] = list(TRANSPORTS)
    parts["NodeEntry"]["properties"]["weight"]["exclusiveMinimum"] = 0
    for key, (low, high) in SECTION_BOUNDS.items():
        section[key] |= {"minimum": low, "maximum": high}
    for name in ("Defaults", "NodeEntry", "SshSection"):
        for key in ("port", "http_port"):
            if key in parts[name]["properties"]:
                parts[name]["properties"][key] |= {"minimum": 0, "maximum": 65_535}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "cluster.yaml", **schema}
