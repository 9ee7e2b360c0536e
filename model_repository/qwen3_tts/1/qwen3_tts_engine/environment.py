"""Environment variables whose names begin with QWEN3_TTS_."""

from collections.abc import Iterable, Iterator

from qwen3_tts_engine.config import ENVIRONMENT_PREFIX, MAIN_MODEL, EngineConfig, no_setting, own_prefix

# Those that are no settings of the engine, and what they are.
OTHER_VARIABLES = {
    "QWEN3_TTS_ADMIN_KEY": "The server's admin key (docs/operations.md, The admin key).",
    "QWEN3_TTS_DRAIN_SECONDS": "Time for open streams when the server stops (docs/operations.md, Shutdown).",
    "QWEN3_TTS_FAKE_PLAN": "Tests: the fault of a plan that is no TensorRT plan.",
    "QWEN3_TTS_FLITE": "Folder of flite's libraries, for `scripts.demo_voice`.",
    "QWEN3_TTS_GATEWAY_KEYS": "API keys of the gateway (docs/gateway.md).",
    "QWEN3_TTS_MPS": "`off` starts no MPS daemon (docs/operations.md, MPS).",
    "QWEN3_TTS_TENSORRT_PLUGIN": "The TensorRT plugin's library (docs/code2wav.md).",
    "QWEN3_TTS_TENSORRT_PYTHON": "A Python that has TensorRT, for the export (docs/code2wav.md).",
    "QWEN3_TTS_TEST_DEVICE": "Tests: the GPU (CONTRIBUTING.md).",
    "QWEN3_TTS_TRITON_BACKENDS": "Tests: folder of Triton's TensorRT backend (docs/code2wav.md).",
}


def known_variables(models: Iterable[str] = ()) -> set[str]:
    """OTHER_VARIABLES and the settings, those of all models and those of each of `models`."""
    prefixes = map(own_prefix, (MAIN_MODEL, *models))
    return {prefix + name.upper() for prefix in prefixes for name in EngineConfig.model_fields} | {*OTHER_VARIABLES}


def unknown_variables(names: Iterable[str], models: Iterable[str] = ()) -> Iterator[str]:
    """For each of `names` that has the prefix and is unknown, a message with the nearest known one."""
    known = known_variables(models)
    for name in sorted(names):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            yield no_setting(name, known)
