"""JSON schemas of the request bodies, for the page that describes the routes."""

from __future__ import annotations

from typing import Any

from ctrlreward.columns import JSON_KEYS


def _body(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_SAMPLES = {
    "type": "array",
    "description": "Records with the same keys.",
    "items": {
        "type": "object",
        "properties": {key: {"type": "string"} for key in JSON_KEYS.values()},
        "required": ["text"],
        "additionalProperties": False,
    },
}
_STRICT = {
    "type": "boolean",
    "default": False,
    "description": "A sample that makes a scorer raise fails the whole request (422).",
}
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["Infinity", "-Infinity", None]}]}
_PARTS = {"type": "array", "items": {"type": "array", "items": _NUMBER}}

SCORE = _body({"samples": _SAMPLES, "strict": _STRICT}, ["samples"])
SCORER = _body(
    {"samples": _SAMPLES, "names": {"type": "array", "items": {"type": "string"}}},
    ["samples", "names"],
)
FOLD = _body({"name": {"type": "string"}, "parts": _PARTS}, ["name", "parts"])
