"""Writes docs/configuration.md from the engine's settings.

python -m scripts.configuration_page
"""

from collections.abc import Iterable
from pathlib import Path

from qwen3_tts_engine.config import (
    CODEC_SETTINGS,
    ENVIRONMENT_PREFIX,
    PER_MODEL_SETTINGS,
    SECRET_SETTINGS,
    EngineConfig,
)
from qwen3_tts_engine.environment import OTHER_VARIABLES

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


HEAD = f"""# Configuration

Made by `python -m scripts.configuration_page`; do not edit.

Each setting is a parameter of `model_repository/qwen3_tts/config.pbtxt`. An environment variable overrides it:
`{ENVIRONMENT_PREFIX}<SETTING>` for all models, `<MODEL>_<SETTING>` for one of another name.
{_listed(PER_MODEL_SETTINGS)} are never shared between models.
{_listed(CODEC_SETTINGS)}, which `code2wav` reads as `{ENVIRONMENT_PREFIX}<SETTING>`, and
{_listed(SECRET_SETTINGS)}, which is secret, are refused as parameters: only the environment may have them.

A parameter that is no setting fails the load. A variable `{ENVIRONMENT_PREFIX}…` that is in neither table is ignored,
with a warning in the log.

| setting | default | allowed | meaning |
|---|---|---|---|
"""
OTHER_HEAD = """
Other environment variables:

| variable | meaning |
|---|---|
"""


def page() -> str:
    schema = EngineConfig.model_json_schema()["properties"]
    others = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in OTHER_VARIABLES.items())
    return HEAD + "".join(_row(name, field) for name, field in schema.items()) + OTHER_HEAD + others


def _row(name: str, field: dict[str, object]) -> str:
    default = "required" if "default" not in field else f"`{field['default']}`"
    description = " ".join(str(field.get("description", "")).split())
    return f"| `{name}` | {default} | {_allowed(field)} | {description} |\n"


def _allowed(field: dict[str, object]) -> str:
    if isinstance(values := field.get("enum"), list):
        return _listed(values)
    if isinstance(options := field.get("anyOf"), list):
        return " or ".join(_allowed(option) for option in options if option.get("type") != "null")
    if "const" in field:
        return f"`{field['const']}`"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    limits = [f"{sign} {field[name]:g}" for name, sign in bounds.items() if name in field]
    return " and ".join(limits) or str(field.get("type", "string"))


if __name__ == "__main__":
    PAGE.write_text(page())
