"""TensorRT's Python without a GPU: what it refuses, and how it is configured."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.forms import tensorrt_plan
from export.forms.graph import TracedModule
from export.forms.tensorrt_form import tensorrt_form
from export.forms.tensorrt_plan import build
from export.tensorrt.api import configure, create_network, import_tensorrt
from export.tensorrt.process import PlanError, TensorRtSettings

pytest.importorskip("tensorrt_rtx_bindings", reason="the extra tensorrt-rtx")
GRAPH = TracedModule(nn.Identity(), {"x": np.zeros((2, 3), np.float32)}, ["y"], {}, [])


def test_names_a_graph_that_tensorrt_cannot_parse(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    options = ["--profiles", "[]", "--cache", str(tmp_path)]
    files = [str(tmp_path / "model.onnx"), str(tmp_path / "model.plan")]
    command = [sys.executable, "-m", "export.tensorrt.build", *files]
    failed = subprocess.run([*command, *options], capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert failed.returncode == 1
    assert f"cannot parse {tmp_path / 'model.onnx'}" in failed.stderr.splitlines()[-1]
    assert not failed.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_refuses_a_plan_that_cannot_be_verified_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(b"plan")
    with pytest.raises(PlanError, match="cannot be verified, so it is not kept: no CUDA driver"):
        tensorrt_form(TensorRtSettings()).load(tmp_path / "model.plan")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_reports_that_the_build_requires_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt.py").write_text("__version__ = '10.14.1.48'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(TracedModule, "write", lambda graph, path: path.touch())
    monkeypatch.setattr(tensorrt_plan, "to_opset_17", lambda path: None)
    with pytest.raises(PlanError, match=r"tensorrt 10\.14\.1\.48 requires a GPU to build; TensorRT for RTX does not"):
        build(TensorRtSettings(cache=tmp_path), GRAPH, tmp_path / "model.plan")


def test_fp32_layers_do_not_use_tf32() -> None:
    trt = import_tensorrt()
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    config = configure(trt, builder, create_network(trt, builder), level=0, report=print)
    assert not config.get_flag(trt.BuilderFlag.TF32)
