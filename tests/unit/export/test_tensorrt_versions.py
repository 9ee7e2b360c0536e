"""Building and running plans with TensorRT 8.6, 10 and 11: stand-ins with the names of each version only."""

import json
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from export.profiles import profile
from export.tensorrt import build as tensorrt_build
from export.tensorrt import run as tensorrt_run
from export.tensorrt.api import TensorRtError, configure, create_network, is_strongly_typed
from qwen3_tts_engine.codec.contract import call_shapes
from tests.fakes import host_cuda
from tests.fakes.tensorrt_module import ENUMS, LACKS, STRICT, tensorrt_module

VERSIONS = tuple(LACKS)
# The first one takes 1 to 4 rows, the second one 6 to 8.
PROFILES = [{"x": [[1, 4], [2, 4], [4, 4]]}, {"x": [[6, 4], [8, 4], [8, 4]]}]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the TensorRT stand-in that is installed, with a GPU."""
    install(request.param, monkeypatch)
    return str(request.param)


def install(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt_module(version))
    monkeypatch.setattr(tensorrt_build, "find_device", host_cuda.Device)
    for name in ("Device", "Buffer", "CudaStream"):
        monkeypatch.setattr(tensorrt_run, name, getattr(host_cuda, name))


def build(folder: Path, dtype: str = "HALF", level: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the exporter's facts of a plan and the stand-in's."""
    (folder / "graph.onnx").write_text(dtype)
    facts = tensorrt_build.build(folder / "graph.onnx", folder / "x.plan", PROFILES, level, folder / "cache")
    return facts, json.loads((folder / "x.plan").read_text())


def test_every_version_builds_a_plan(version: str, tmp_path: Path) -> None:
    facts, plan = build(tmp_path)
    assert (facts["library"], facts["version"], facts["level"]) == ("tensorrt", version, 2)
    assert facts["strongly_typed"] == (version != "8.6")
    assert (plan["level"], plan["profiles"]) == (2, PROFILES)
    assert "TF32" not in plan["builder"]


@pytest.mark.parametrize(
    ("version", "network"),
    [("8.6", ["EXPLICIT_BATCH"]), ("10.14", ["EXPLICIT_BATCH", "STRONGLY_TYPED"]), ("11.1", ["STRONGLY_TYPED"])],
)
def test_network_is_strongly_typed_where_the_version_supports_it(
    version: str, network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(version, monkeypatch)
    _, plan = build(tmp_path)
    assert plan["network"] == network
    assert (plan["builder"], plan["tactics"]) == (
        (["FP16", "PREFER_PRECISION_CONSTRAINTS"], ["EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"])
        if version == "8.6"
        else ([], None)
    )


@pytest.mark.parametrize(("dtype", "precisions"), [("HALF", ["HALF", "FLOAT"]), ("FLOAT", ["FLOAT", "FLOAT"])])
def test_tensorrt_8_computes_in_fp16_where_the_graph_does(
    dtype: str, precisions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("8.6", monkeypatch)
    _, plan = build(tmp_path, dtype)
    assert plan["precisions"] == precisions
    assert ("FP16" in plan["builder"]) == (dtype == "HALF")


def test_builds_extend_the_timing_cache(version: str, tmp_path: Path) -> None:
    for builds in (1, 2):
        build(tmp_path)
        [timings] = (tmp_path / "cache").iterdir()
        assert timings.name == f"tensorrt-{version}-NVIDIA-H200.timings"
        assert timings.read_bytes() == b"timing " * builds


def test_an_export_that_reads_the_timing_cache_is_not_disturbed(version: str, tmp_path: Path) -> None:
    build(tmp_path)
    [timings] = (tmp_path / "cache").iterdir()
    with timings.open("rb") as reader:
        build(tmp_path)
        assert reader.read() == b"timing "
    assert timings.read_bytes() == b"timing timing "


def test_reports_progress_where_the_version_has_a_monitor(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path)
    assert ("Building (2 steps)" in capsys.readouterr().err) == (version != "8.6")


def test_every_version_runs_a_plan(version: str, tmp_path: Path) -> None:
    build(tmp_path)
    plan = tensorrt_run.Plan(tmp_path / "x.plan")
    assert plan.dtypes == {"x": "float16", "y": "float16"}
    assert plan.dims == {"x": [-1, 4], "y": [-1, 4]}
    data = bytes(range(24))
    assert plan.run({"x": data}, {"x": [3, 4]}) == {"y": data}
    assert plan.microseconds({"x": [3, 4]}, 2) == 1.0
    for rows in (5, 9):
        with pytest.raises(TensorRtError, match=rf"the plan does not support x \[{rows}, 4\]"):
            plan.output_shapes({"x": [rows, 4]})


def test_every_profile_has_its_own_context(version: str, tmp_path: Path) -> None:
    build(tmp_path)
    plan = tensorrt_run.Plan(tmp_path / "x.plan")
    for rows in (3, 7, 4, 8):
        data = bytes(range(rows * 8))
        assert plan.run({"x": data}, {"x": [rows, 4]}) == {"y": data}


def build_step(folder: Path, name: str = "step.program") -> tuple[dict[str, Any], dict[str, Any]]:
    profiles = [profile(call_shapes(1, 1), call_shapes(32, 4), call_shapes(64, 16))]
    facts = tensorrt_build.build(folder / name, folder / "x.plan", profiles, 3, folder / "cache")
    return facts, json.loads((folder / "x.plan").read_text())


def test_every_version_builds_the_step_as_a_plugin(version: str, tmp_path: Path) -> None:
    facts, plan = build_step(tmp_path)
    assert facts["plugin"]
    assert plan["plugins"] == [f"Code2Wav path={tmp_path / 'step.program'} as CHAR"]
    assert plan["inputs"] == [
        ["codes", "INT32", [-1, -1, 16]],
        ["places", "INT32", [-1, 4]],
    ]
    [[name, dtype]] = plan["outputs"]
    assert name == "pcm"
    # A strongly typed network takes its types from the plugin.
    assert dtype == "INT32" or version != "8.6"


def test_names_a_plugin_that_is_missing_or_rejects_the_program(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TensorRtError, match=r"the plugin Code2Wav rejects .*spoiled\.program"):
        build_step(tmp_path, "spoiled.program")
    monkeypatch.setattr(sys.modules["tensorrt"].IPluginRegistry, "_plugins", ())
    with pytest.raises(TensorRtError, match="Code2Wav is not loaded: set QWEN3_TTS_TENSORRT_PLUGIN to its library"):
        build_step(tmp_path)


def test_names_a_plugin_library_that_does_not_load(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN3_TTS_TENSORRT_PLUGIN", str(tmp_path / "none.so"))
    with pytest.raises(TensorRtError, match=r"QWEN3_TTS_TENSORRT_PLUGIN: .*none\.so"):
        build(tmp_path)


def test_refuses_a_plan_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("10.14", monkeypatch)
    build(tmp_path)
    install("11.1", monkeypatch)
    with pytest.raises(TensorRtError, match=r"x\.plan: TensorRT 11\.1 on NVIDIA H200 cannot load it"):
        tensorrt_run.Plan(tmp_path / "x.plan")


def test_network_is_strongly_typed_without_the_deprecated_flag() -> None:
    """TensorRT 11 deprecates and ignores STRONGLY_TYPED."""
    trt = tensorrt_module("11.1")
    vars(trt)["NetworkDefinitionCreationFlag"] = IntEnum("NetworkDefinitionCreationFlag", [])
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = create_network(trt, builder)
    assert is_strongly_typed(trt)
    assert configure(trt, builder, network, level=3, report=print)._tactics is None


@pytest.mark.parametrize("version", VERSIONS)
def test_stand_in_raises_for_names_that_a_version_lacks(version: str) -> None:
    trt = tensorrt_module(version)
    for name, lacks in LACKS[version].items():
        holder = trt if name == "tensorrt" else getattr(trt, name)
        instance = holder() if holder is not trt and name not in ENUMS else holder
        for missing in lacks:
            assert not hasattr(instance, missing), (version, name, missing)
            if instance is not holder:
                with pytest.raises(AttributeError, match=f"has no {missing}"):
                    setattr(instance, missing, None)
    with pytest.raises(AttributeError):
        trt.IBuilderConfig().max_workspace_size = 1


def test_stand_in_of_version_11_has_the_names_of_tensorrt_for_rtx() -> None:
    """TensorRT for RTX has the API of TensorRT 11."""
    real = pytest.importorskip("tensorrt_rtx_bindings", reason="the extra tensorrt-rtx")
    trt = tensorrt_module("11.1")
    lacks = LACKS["11.1"]
    # TensorRT for RTX does not support plugins.
    lacks = lacks | {"INetworkDefinition": lacks["INetworkDefinition"] | {"add_plugin_v3"}}
    for name in [*ENUMS, *(base.__name__ for base in STRICT if base.__name__ != "IPluginCreator")]:
        known, possible = set(dir(getattr(real, name))), getattr(trt, name)
        # Timing caches of TensorRT for RTX are not used, but have the same names.
        names = {member for member in dir(possible) if not member.startswith("_")} - {"trt", "lacks"}
        if name in ENUMS:
            names = set(possible.__members__)
        assert names - lacks.get(name, set()) <= known, name
        assert not lacks.get(name, set()) & known, name
