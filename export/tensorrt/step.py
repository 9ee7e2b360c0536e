"""The step as a network of one layer: the plugin (export/plugin) with a step program (step_program).

Runs in any Python with TensorRT, as export.tensorrt.build does.
"""

from pathlib import Path
from typing import Any

from export.profiles import Profile
from export.tensorrt.api import PLUGIN_LIBRARY, TensorRtError, is_strongly_typed

NAME, VERSION = "Code2Wav", "2"
# The plugin field with a program's path (export/plugin/layer.h).
PATH = "path"
INPUTS, OUTPUT = ("codes", "places"), "pcm"
ANY = -1
PROGRAM_SUFFIX = ".program"


def add_step(trt: Any, network: Any, program: Path, profiles: list[Profile]) -> None:
    """Raises TensorRtError if the plugin is not loaded or rejects the program."""
    inputs = [network.add_input(name, trt.int32, dims(profiles, name)) for name in INPUTS]
    plugin = _plugin(trt, program)
    layer = network.add_plugin_v3(inputs, [], plugin) if _has_v3(trt) else network.add_plugin_v2(inputs, plugin)
    tensor = layer.get_output(0)
    tensor.name = OUTPUT
    network.mark_output(tensor)
    if not is_strongly_typed(trt):
        tensor.dtype = trt.int32


def dims(profiles: list[Profile], name: str) -> tuple[int, ...]:
    """Dimensions of an input, ANY where the profiles differ."""
    sizes = zip(*(shape for profile in profiles for shape in profile[name]), strict=True)
    return tuple(found.pop() if len(found) == 1 else ANY for found in map(set, sizes))


def _plugin(trt: Any, program: Path) -> Any:
    registry = trt.get_plugin_registry()
    find = registry.get_creator if _has_v3(trt) else registry.get_plugin_creator
    creator = find(NAME, VERSION, "")
    if creator is None:
        raise TensorRtError(f"the plugin {NAME} is not loaded: set {PLUGIN_LIBRARY} to its library")
    field = trt.PluginField(PATH, str(program).encode(), trt.PluginFieldType.CHAR)
    phase = (trt.TensorRTPhase.BUILD,) if _has_v3(trt) else ()
    plugin = creator.create_plugin(NAME, trt.PluginFieldCollection([field]), *phase)
    if plugin is None:
        raise TensorRtError(f"the plugin {NAME} rejects {program}; its message is above")
    return plugin


def _has_v3(trt: Any) -> bool:
    """Whether plugins are IPluginV3, as from TensorRT 10 on."""
    return hasattr(trt, "TensorRTPhase")
