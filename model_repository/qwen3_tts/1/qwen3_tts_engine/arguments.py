"""The arguments of Triton's `initialize`."""

import json
from pathlib import Path
from typing import Any

from qwen3_tts_engine.config import ConfigError, EngineConfig

# The argument that names what owns rows of the codec, beside Triton's own.
OWNER = "owner"


def read_config(args: dict[str, str]) -> EngineConfig:
    """The settings of the arguments and of the environment. Raises ConfigError."""
    model_config = json.loads(args["model_config"])
    check_instances(model_config["instance_group"])
    values = {name: value["string_value"] for name, value in model_config["parameters"].items()}
    return EngineConfig.from_parameters(values, model=args["model_name"])


def check_instances(groups: list[dict[str, Any]]) -> None:
    """Raises ConfigError when Triton's `instance_group` creates more than one instance.

    Instances would split the streams, a sequence's requests and every GPU's codec among them.
    """
    count = sum(group["count"] * max(1, len(group["gpus"])) for group in groups)
    if count > 1:
        raise ConfigError(
            f"instance_group: {count} instances, only one is allowed: run one server per GPU, with CUDA_VISIBLE_DEVICES"
        )


def repository(args: dict[str, str]) -> Path:
    return Path(args["model_repository"]).parent


def version_folder(args: dict[str, str]) -> Path:
    return Path(args["model_repository"]) / args["model_version"]


def assigned_device(args: dict[str, str]) -> str:
    """The device that Triton assigned, "cpu" or "cuda:N"."""
    return f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"
