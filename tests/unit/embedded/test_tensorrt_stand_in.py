"""The stand-in TensorRT backend with a scripted plan: merged and refused requests, and a plan in another Python."""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from google.protobuf import json_format, text_format
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2

from export.encoders import CODEC_ENCODER, configured
from export.forms.tensorrt_plan import tensorrt
from export.profiles import profile
from export.tensorrt import shared_plan
from export.tensorrt.process import PlanError, PlanProcess, SharedTensors, TensorRtSettings
from qwen3_tts_engine.codec.contract import input_shapes

ROOT = Path(__file__).parents[3]
BACKENDS = ROOT / "scripts" / "embedded" / "backends"
MODULES = ("merged_runs", "plan", "own_plan", "other_plan", "model")
STATE = 1298496
STATES = ("state", "state_out")


CODE2WAV = (ROOT / "model_repository" / "code2wav" / "config.pbtxt").read_text()


def model_config(text: str) -> dict[str, Any]:
    """A configuration as Triton passes it to a Python backend."""
    parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
    every = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    config: dict[str, Any] = json.loads(json_format.MessageToJson(parsed, **every))
    return config


class ScriptedPlan:
    """The state has STATE values; the waveform is each row's first code."""

    state_size = STATE

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self.batches = path, []
        self.dtypes = {"codes": torch.int32, "state": torch.float16, "history": torch.int32}
        self.dims = {"codes": (-1, -1, 16), "state": (-1, self.state_size), "history": (-1, 1)}

    def run(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.batches.append(len(inputs["codes"]))
        return {"waveform": inputs["codes"][:, 0, :1].float(), "state_out": inputs["state"]}


class ScriptedEncoder(ScriptedPlan):
    """Encodes references: every code is the number of samples."""

    def __init__(self, path: Path, device: torch.device) -> None:
        super().__init__(path, device)
        self.dtypes = {"audio": torch.float32, "num_samples": torch.int32}
        self.dims = {"audio": (1, -1, 1920), "num_samples": (1, 1)}

    def run(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.batches.append(len(inputs["audio"]))
        return {"codes": inputs["num_samples"][:, None].expand(1, inputs["audio"].shape[1], 16)}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The backend's modules, imported as the server imports them, with TensorRT and Triton scripted."""
    tensorrt, triton = ModuleType("tensorrt"), ModuleType("triton_python_backend_utils")
    vars(tensorrt).update(float32=0, float16=1, int32=2)
    vars(triton).update(InferenceResponse=response, Tensor=Tensor, TritonError=TritonError)
    for name, module in (("tensorrt", tensorrt), ("triton_python_backend_utils", triton)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(BACKENDS / "shared"))
    monkeypatch.syspath_prepend(str(BACKENDS / "tensorrt"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    plan, model = importlib.import_module("plan"), importlib.import_module("model")
    monkeypatch.setattr(model, "open_plan", ScriptedPlan)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    yield SimpleNamespace(plan=plan, model=model)
    for name in MODULES:
        sys.modules.pop(name, None)


class Tensor:
    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self._name, self._tensor = name, tensor

    def name(self) -> str:
        return self._name

    def to_dlpack(self) -> Any:
        return self._tensor.__dlpack__()

    @classmethod
    def from_dlpack(cls, name: str, tensor: torch.Tensor) -> "Tensor":
        return cls(name, tensor)


class TritonError(Exception):
    INVALID_ARG, INTERNAL = "invalid", "internal"


def response(tensors: list[Tensor] | None = None, error: TritonError | None = None) -> Any:
    return error or {tensor.name(): tensor._tensor for tensor in tensors or []}


def request(code: int, rows: int = 1, **change: torch.Tensor) -> Any:
    codes = {
        "codes": torch.full((rows, 2, 16), code, dtype=torch.int32),
        "state": torch.zeros(rows, STATE, dtype=torch.float16),
        "history": torch.zeros(rows, 1, dtype=torch.int32),
    }
    return request_of(codes | change, ["waveform", "state_out"])


def request_of(tensors: dict[str, torch.Tensor], outputs: list[str]) -> Any:
    inputs = [Tensor(name, tensor) for name, tensor in tensors.items()]
    return SimpleNamespace(inputs=lambda: inputs, requested_output_names=lambda: outputs)


def initialized(backend: SimpleNamespace, config: str = CODE2WAV, **change: str) -> Any:
    model = backend.model.TritonPythonModel()
    arguments = {
        "model_config": json.dumps(model_config(config)), "model_instance_kind": "GPU", "model_instance_device_id": "0",
        "model_repository": "/models/code2wav", "model_version": "1",
    } | change  # fmt: skip
    model.initialize(arguments)
    return model


def plan_of(model: Any) -> ScriptedPlan:
    plan: ScriptedPlan = model.model.run.__self__
    return plan


def test_loads_the_configured_plan(backend: SimpleNamespace) -> None:
    assert plan_of(initialized(backend)).path == Path("/models/code2wav/1/model.plan")


def test_requires_a_gpu_instance(backend: SimpleNamespace) -> None:
    with pytest.raises(RuntimeError, match="supports only GPU instances"):
        initialized(backend, model_instance_kind="CPU")


def test_merges_requests_and_refuses_only_malformed_ones(backend: SimpleNamespace) -> None:
    model = initialized(backend)
    wrong_state = torch.zeros(1, 7, dtype=torch.float16)
    old = torch.full((1, 1), 72, dtype=torch.int32)
    requests = [request(5), request(2048), request(7, rows=2), request(1, state=wrong_state), request(1, history=old)]
    first, out_of_range, second, wrong_size, too_old = model.execute(requests)
    assert plan_of(model).batches == [3]
    assert first["waveform"].tolist() == [[5]]
    assert second["waveform"].tolist() == [[7], [7]]
    assert out_of_range.args == ("codes: values from 2048 to 2048 given, must be 0 to 2047", "invalid")
    assert wrong_size.args[0] == "state: torch.float16 [1, 7] given, torch.float16 [-1, 1298496] expected"
    assert too_old.args[0] == "history: values from 72 to 72 given, must be 0 to 71"


def test_serves_an_encoder_with_the_exporters_configuration(
    backend: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.model, "open_plan", ScriptedEncoder)
    runtime = tensorrt(TensorRtSettings())
    model = initialized(backend, configured(CODEC_ENCODER, runtime, "codec_encoder", 16))

    def reference(frames: int, samples: int, size: int = 1920) -> Any:
        count = torch.tensor([[samples]], dtype=torch.int32)
        return request_of({"audio": torch.zeros(1, frames, size), "num_samples": count}, ["codes"])

    first, second, wrong = model.execute([reference(2, 3000), reference(2, 3500), reference(2, 0, size=7)])
    assert plan_of(model).batches == [1, 1]
    assert first["codes"].tolist() == [[[3000] * 16] * 2]
    assert second["codes"].shape == (1, 2, 16)
    assert wrong.args == ("audio: torch.float32 [1, 2, 7] given, torch.float32 [1, -1, 1920] expected", "invalid")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA streams do nothing, so work on them runs at once."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())


def write_plan(path: Path) -> None:
    """A plan for the scripted TensorRT: the waveform is the codes, the next state is the state plus the history."""
    codes = helper.make_tensor_value_info("codes", TensorProto.INT32, ["rows", "frames", 16])
    state, state_out = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["rows", 8]) for n in STATES)
    history = helper.make_tensor_value_info("history", TensorProto.INT32, ["rows", 1])
    waveform = helper.make_tensor_value_info("waveform", TensorProto.FLOAT, ["rows", "samples"])
    nodes = [
        helper.make_node("Cast", ["codes"], ["results"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["results"], ["waveform"]),
        helper.make_node("Cast", ["history"], ["age"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["state", "age"], ["state_out"]),
    ]
    made = helper.make_graph(nodes, "step", [codes, state, history], [waveform, state_out])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    profiles = [profile(*(input_shapes(rows, frames, 8) for rows in (1, 4, 8))) for frames in (1, 2, 4)]
    model.metadata_props.add(key="profiles", value=json.dumps(profiles))
    onnx.save(model, path)


def test_plan_in_another_python_shares_memory_with_the_backend(
    backend: SimpleNamespace,
    fake_tensorrt: TensorRtSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_gpu: None,
) -> None:
    write_plan(tmp_path / "model.plan")
    other = importlib.import_module("other_plan")

    def mapped(shared: SharedTensors, device: torch.device) -> torch.Tensor:
        return torch.from_file(shared.handle.decode(), shared=True, size=shared.size, dtype=torch.uint8)

    monkeypatch.setattr(shared_plan, "mapped", mapped)
    plan = other.OtherPlan(tmp_path / "model.plan", torch.device("cpu"), fake_tensorrt.python)
    expected = PlanProcess(fake_tensorrt, tmp_path / "model.plan")
    assert plan.dims["codes"] == (-1, -1, 16)
    assert plan.dtypes["state"] == torch.float16
    random = np.random.default_rng(0)
    results = []
    for rows, frames in ((1, 1), (3, 2), (4, 2), (2, 4)):
        inputs = {
            "codes": random.integers(0, 2048, (rows, frames, 16), np.int32),
            "state": random.standard_normal((rows, 8)).astype(np.float16),
            "history": random.integers(0, 72, (rows, 1), np.int32),
        }
        outputs = plan.run({name: torch.from_numpy(array) for name, array in inputs.items()})
        results.append((outputs, expected(inputs)))
    # Compared last, because a later run must not overwrite an earlier run's outputs.
    for outputs, desired in results:
        assert outputs.keys() == desired.keys()
        for name, array in desired.items():
            np.testing.assert_array_equal(outputs[name].numpy(), array)
    refused = {name: torch.from_numpy(array) for name, array in inputs.items()}
    for frames in (3, 8):
        refused["codes"] = torch.zeros(2, frames, 16, dtype=torch.int32)
        with pytest.raises(other.InvalidInputError, match=rf"does not support codes \[2, {frames}, 16\], state"):
            plan.run(refused)


def test_names_a_plan_that_another_python_cannot_load(
    backend: SimpleNamespace, fake_tensorrt: TensorRtSettings, tmp_path: Path, no_gpu: None
) -> None:
    other = importlib.import_module("other_plan")
    with pytest.raises(PlanError, match=r"model\.plan"):
        other.OtherPlan(tmp_path / "model.plan", torch.device("cpu"), fake_tensorrt.python)
