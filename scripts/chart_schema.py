"""Writes the settings of the engine and the gateway into the Helm chart's schema of values.

python -m scripts.chart_schema
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_gateway.config import Settings

SCHEMA = Path(__file__).parents[1] / "docker" / "helm" / "qwen3-tts" / "values.schema.json"
# Set by the chart from other values, by the image or by its launcher; the export knows no revision.
ENGINE_OWNED = {"checkpoint", "revision", "speaker_encoder", "voices_folder", "voices_dsn", "drain_file"}
GATEWAY_OWNED = {"host", "port", "servers", "auth", "keys_file"}
# The default may depend on the machine, and the title says what the name does.
LEFT_OUT = ("default", "title")


def updated(schema: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema with the definitions of both groups of settings."""
    engine, gateway = _settings(EngineConfig, ENGINE_OWNED), _settings(Settings, GATEWAY_OWNED)
    definitions = schema["definitions"] | {"engineSettings": engine, "gatewaySettings": gateway}
    return schema | {"definitions": definitions}


def text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _settings(model: type[BaseModel], owned: set[str]) -> dict[str, Any]:
    fields = model.model_json_schema()["properties"]
    properties = {name: _field(field) for name, field in fields.items() if name not in owned}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _field(field: dict[str, Any]) -> dict[str, Any]:
    described = {name: value for name, value in field.items() if name not in LEFT_OUT}
    if "description" in described:
        described["description"] = " ".join(described["description"].split())
    return described


if __name__ == "__main__":
    SCHEMA.write_text(text(updated(json.loads(SCHEMA.read_text(encoding="utf-8")))), encoding="utf-8")
