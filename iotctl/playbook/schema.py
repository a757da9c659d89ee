"""The JSON Schema of playbooks, made from the verbs and the reader's types. Pure."""

from collections.abc import Mapping
from typing import Any

from iotctl.spec.cluster import API_VERSION
from iotctl.spec.playbook import ON_FAILURE, TYPES, Parameter, Verb

_REFERENCE = {"type": "string", "pattern": r"\$\{"}
_JSON = {"int": "integer", "float": "number", "bool": "boolean", "list": "array"}


def schema_of(verbs: Mapping[str, Verb]) -> dict[str, Any]:
    """JSON Schema 2020-12; the schema of `with` depends on `uses`."""
    text = {"type": "string"}
    variable = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "type": {"enum": list(TYPES)},
            "default": {},
            "secret": {"type": "boolean"},
            "env": text,
            "file": text,
            "description": text,
        },
    }
    step = {
        "type": "object",
        "required": ["uses"],
        "additionalProperties": False,
        "properties": {
            "id": text,
            "name": text,
            "uses": {"enum": sorted(verbs)},
            "with": {"type": "object"},
            "when": text,
            "register": text,
            "serial": {"type": "array", "items": {"type": ["integer", "string"]}},
            "max_unavailable": {"type": "integer", "minimum": 1},
            "timeout": text,
            "on_failure": {"enum": list(ON_FAILURE)},
        },
        "allOf": [
            {
                "if": {"properties": {"uses": {"const": verb.name}}, "required": ["uses"]},
                "then": {"properties": {"with": _arguments(verb)}},
            }
            for verb in verbs.values()
        ],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "iotctl playbook",
        "type": "object",
        "required": ["apiVersion", "name", "steps"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "name": text,
            "description": text,
            "vars": {"type": "object", "additionalProperties": variable},
            "steps": {"type": "array", "minItems": 1, "items": step},
        },
    }


def _arguments(verb: Verb) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [p.name for p in verb.parameters if p.required],
        "properties": {p.name: _value(p) for p in verb.parameters},
    }


def _value(parameter: Parameter) -> dict[str, Any]:
    one: dict[str, Any] = {"anyOf": [{"type": _JSON.get(parameter.type, "string")}, _REFERENCE]}
    return {"anyOf": [{"type": "array", "items": one}, one]} if parameter.many else one
