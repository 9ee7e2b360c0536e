"""Stands in for the package `tensorrt` of version 8.6, 10.14 or 11.1: tensorrt_module("11.1").

Objects have only the names of their version that a build or a run may use, and raise AttributeError for any other. The
names are those of NVIDIA's bindings at release/8.6, release/10.14 and release/11.1. The ONNX file holds the type of the
graph's input, HALF or FLOAT. The plan is JSON with the settings of network and builder. It has one input `x` and one
output `y`, a copy of `x`.
"""

import ctypes
import json
import math
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

# The names below that a version lacks, by version and class.
WEAK_TYPING = {"FP16", "OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS"}
LACKS: dict[str, dict[str, set[str]]] = {
    "8.6": {
        "tensorrt": {"IProgressMonitor", "TensorRTPhase"},
        "INetworkDefinition": {"add_plugin_v3"},
        "IPluginRegistry": {"get_creator"},
        "NetworkDefinitionCreationFlag": {"STRONGLY_TYPED"},
        "IBuilderConfig": {"progress_monitor"},
    },
    "10.14": {},
    "11.1": {
        "NetworkDefinitionCreationFlag": {"EXPLICIT_BATCH"},
        "BuilderFlag": WEAK_TYPING,
        "TacticSource": {"CUBLAS", "CUBLAS_LT", "CUDNN"},
        "ILayer": {"precision", "set_output_type"},
        "INetworkDefinition": {"add_plugin_v2"},
        "IPluginRegistry": {"get_plugin_creator"},
    },
}
ENUMS = {
    "NetworkDefinitionCreationFlag": "EXPLICIT_BATCH STRONGLY_TYPED",
    "BuilderFlag": "FP16 TF32 OBEY_PRECISION_CONSTRAINTS PREFER_PRECISION_CONSTRAINTS",
    "TacticSource": "CUBLAS CUBLAS_LT CUDNN EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS",
    "LayerType": "CONVOLUTION ACTIVATION ELEMENTWISE NORMALIZATION REDUCE SOFTMAX UNARY",
    "TensorIOMode": "NONE INPUT OUTPUT",
    "TensorRTPhase": "BUILD RUNTIME",
    "PluginFieldType": "CHAR",
}


class Strict:
    """Has the names of its class except those that its version lacks, and rejects all others."""

    trt: ClassVar[Any]
    lacks: ClassVar[set[str]]

    def __getattribute__(self, name: str) -> Any:
        if name in type(self).lacks:
            raise AttributeError(f"{type(self).__name__} of {type(self).trt.__version__} has no {name}")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self, name)
        super().__setattr__(name, value)


class DataType(IntEnum):
    FLOAT = 0
    HALF = 1
    INT32 = 3

    @property
    def itemsize(self) -> int:
        return 2 if self is DataType.HALF else 4


class Logger(Strict):
    WARNING, ERROR = 1, 2

    def __init__(self, min_severity: int) -> None: ...


class ITensor(Strict):
    name = ""
    dtype = DataType.FLOAT
    _shape: tuple[int, ...] = ()


class ILayer(Strict):
    type: Any = None
    precision = DataType.FLOAT
    _outputs: tuple[Any, ...] = ()
    _plugin = ""

    def get_output(self, index: int) -> Any:
        return self._outputs[index]

    def set_output_type(self, index: int, dtype: DataType) -> None:
        self._outputs[index].dtype = dtype


class PluginField(Strict):
    _text = ""

    def __init__(self, name: str, data: bytes, type: Any) -> None:
        self._text = f"{name}={data.decode()} as {type.name}"


class IPluginCreator(Strict):
    def create_plugin(self, name: str, fields: list[Any], *phase: Any) -> Any:
        assert len(phase) == hasattr(self.trt, "TensorRTPhase")
        [field] = fields
        return None if "spoiled" in field._text else f"{name} {field._text}"


class IPluginRegistry(Strict):
    _plugins: tuple[str, ...] = ("Code2Wav",)

    def get_plugin_creator(self, type: str, version: str, plugin_namespace: str = "") -> Any:
        return self._creator(type)

    def get_creator(self, type: str, version: str, plugin_namespace: str = "") -> Any:
        return self._creator(type)

    def _creator(self, type: str) -> Any:
        return self.trt.IPluginCreator() if type in self._plugins else None


class INetworkDefinition(Strict):
    """Once parsed, has an input of the graph's type, a convolution of that type and a softmax in FP32."""

    num_inputs = num_layers = 0
    _layers: tuple[Any, ...] = ()
    _inputs: tuple[Any, ...] = ()
    _outputs: tuple[Any, ...] = ()
    _flags: frozenset[str] = frozenset()

    def add_input(self, name: str, dtype: DataType, shape: tuple[int, ...]) -> Any:
        tensor = self.trt.ITensor()
        tensor.name, tensor.dtype, tensor._shape = name, dtype, shape
        self._inputs += (tensor,)
        self.num_inputs = len(self._inputs)
        return tensor

    def add_plugin_v2(self, inputs: list[Any], plugin: Any) -> Any:
        return self._add_plugin(inputs, plugin)

    def add_plugin_v3(self, inputs: list[Any], shape_inputs: list[Any], plugin: Any) -> Any:
        return self._add_plugin(inputs, plugin)

    def _add_plugin(self, inputs: list[Any], plugin: str) -> Any:
        assert inputs == list(self._inputs)
        layer = self.trt.ILayer()
        layer._plugin, layer._outputs = plugin, (self.trt.ITensor(), self.trt.ITensor())
        self._layers, self.num_layers = (layer,), 1
        return layer

    def mark_output(self, tensor: Any) -> None:
        self._outputs += (tensor,)

    def get_input(self, index: int) -> Any:
        return self._inputs[index]

    def get_layer(self, index: int) -> Any:
        return self._layers[index]


class ITimingCache(Strict):
    _data = b""

    def serialize(self) -> bytes:
        return self._data + b"timing "


class IOptimizationProfile(Strict):
    _shapes: tuple[tuple[str, list[list[int]]], ...] = ()

    def set_shape(self, input: str, min: list[int], opt: list[int], max: list[int]) -> None:
        self._shapes += ((input, [min, opt, max]),)


class IProgressMonitor:
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None: ...


class IBuilderConfig(Strict):
    builder_optimization_level = 3
    progress_monitor: Any = None
    _flags: frozenset[str] = frozenset({"TF32"})
    _tactics: Any = None
    _cache: Any = None
    _profiles: tuple[Any, ...] = ()

    def set_flag(self, flag: Any) -> None:
        self._flags |= {flag.name}

    def clear_flag(self, flag: Any) -> None:
        self._flags -= {flag.name}

    def get_flag(self, flag: Any) -> bool:
        return flag.name in self._flags

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        self._tactics = [source.name for source in self.trt.TacticSource if tactic_sources >> source & 1]
        return True

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
        cache = self.trt.ITimingCache()
        cache._data = serialized_timing_cache
        return cache

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    def get_timing_cache(self) -> Any:
        return self._cache

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles += (profile,)
        return len(self._profiles) - 1


class Builder(Strict):
    def __init__(self, logger: Any) -> None: ...

    def create_network(self, flags: int = 0) -> Any:
        network = self.trt.INetworkDefinition()
        known = self.trt.NetworkDefinitionCreationFlag
        network._flags = frozenset(flag.name for flag in known if flags >> flag & 1)
        return network

    def create_builder_config(self) -> Any:
        return self.trt.IBuilderConfig()

    def create_optimization_profile(self) -> Any:
        return self.trt.IOptimizationProfile()

    def build_serialized_network(self, network: Any, config: Any) -> bytes:
        if hasattr(config, "progress_monitor"):
            config.progress_monitor.phase_start("Building", None, 2)
        facts = {
            "version": self.trt.__version__,
            "network": sorted(network._flags),
            "builder": sorted(config._flags),
            "level": config.builder_optimization_level,
            "tactics": config._tactics,
            "precisions": [layer.precision.name for layer in network._layers if hasattr(layer, "precision")],
            "profiles": [dict(profile._shapes) for profile in config._profiles],
            "dtype": network.get_input(0).dtype.name,
            "plugins": [layer._plugin for layer in network._layers if layer._plugin],
            "inputs": [[tensor.name, tensor.dtype.name, tensor._shape] for tensor in network._inputs],
            "outputs": [[tensor.name, tensor.dtype.name] for tensor in network._outputs],
        }
        return json.dumps(facts).encode()


class OnnxParser(Strict):
    num_errors = 0
    _network: Any = None

    def __init__(self, network: Any, logger: Any) -> None:
        self._network = network

    def parse_from_file(self, path: str) -> bool:
        trt, network = self.trt, self._network
        self.num_errors = int(trt.__version__ == "8.6" and "EXPLICIT_BATCH" not in network._flags)
        given = network.add_input("x", DataType[Path(path).read_text()], (-1, 4))
        network._layers = tuple(self._layer(*of) for of in (("CONVOLUTION", given.dtype), ("SOFTMAX", 0)))
        network.num_layers = len(network._layers)
        return not self.num_errors

    def _layer(self, kind: str, dtype: int) -> Any:
        layer = self.trt.ILayer()
        layer.type, layer._outputs = self.trt.LayerType[kind], (self.trt.ITensor(),)
        layer._outputs[0].dtype = DataType(dtype)
        if hasattr(layer, "precision"):
            layer.precision = self._network.get_input(0).dtype  # the choice of a weakly typed network that may use FP16
        return layer

    def get_error(self, index: int) -> str:
        return "network must have an explicit batch dimension"


class IExecutionContext(Strict):
    """Has a profile that no other context of its engine has; the first context starts with profile 0."""

    _engine: Any = None
    _profile: int | None = None
    _shape: tuple[int, ...] = ()
    _addresses: tuple[tuple[str, int], ...] = ()

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if profile_index in (context._profile for context in self._engine._contexts):
            return False
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: list[int]) -> bool:
        assert self._profile is not None, "a context without a profile crashes"
        self._shape = tuple(shape)
        smallest, _, largest = self._engine.get_tensor_profile_shape(name, self._profile)
        return all(low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shape

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses += ((name, memory),)
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        size = math.prod(self._shape) * self._engine.get_tensor_dtype("x").itemsize
        addresses = dict(self._addresses)
        ctypes.memmove(addresses["y"], addresses["x"], size)
        return True


class ICudaEngine(Strict):
    num_io_tensors = 2
    num_optimization_profiles = 0
    _facts: Any = None
    _contexts: tuple[Any, ...] = ()

    def create_execution_context(self) -> Any:
        context = self.trt.IExecutionContext()
        context._engine, context._profile = self, None if self._contexts else 0
        self._contexts += (context,)
        return context

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self._facts["dtype"]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1, 4)

    def get_tensor_mode(self, name: str) -> Any:
        return self.trt.TensorIOMode.INPUT if name == "x" else self.trt.TensorIOMode.OUTPUT

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        return [tuple(shape) for shape in self._facts["profiles"][profile_index][name]]


class Runtime(Strict):
    def __init__(self, logger: Any) -> None: ...

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        facts = json.loads(serialized_engine)
        if facts["version"] != self.trt.__version__:
            return None
        engine = self.trt.ICudaEngine()
        engine._facts, engine.num_optimization_profiles = facts, len(facts["profiles"])
        return engine


STRICT = (
    Logger, ITensor, ILayer, PluginField, IPluginCreator, IPluginRegistry, INetworkDefinition, ITimingCache,
    IOptimizationProfile, IBuilderConfig, Builder,
    OnnxParser, IExecutionContext, ICudaEngine, Runtime,
)  # fmt: skip


def tensorrt_module(version: str) -> Any:
    module, lacks = ModuleType("tensorrt"), LACKS[version]
    names: dict[str, Any] = {
        "__version__": version,
        "DataType": DataType,
        "float32": DataType.FLOAT,
        "float16": DataType.HALF,
        "int32": DataType.INT32,
        "PluginFieldCollection": list,
        "IProgressMonitor": IProgressMonitor,
    }
    for enum, members in ENUMS.items():
        if enum in lacks.get("tensorrt", ()):
            continue
        known = [name for name in members.split() if name not in lacks.get(enum, ())]
        names[enum] = IntEnum(enum, known, start=0)
    for base in STRICT:
        names[base.__name__] = type(base.__name__, (base,), {"trt": module, "lacks": lacks.get(base.__name__, set())})
    names["get_plugin_registry"] = lambda: module.IPluginRegistry()
    vars(module).update({name: value for name, value in names.items() if name not in lacks.get("tensorrt", ())})
    return module
