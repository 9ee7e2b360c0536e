"""The kernels of the codec's graphs at the released size, recorded on the meta device, where nothing is computed."""

import os
from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import torch

from code2wav_step import weights as step_weights
from code2wav_step.buckets import BatchShape, Buckets
from code2wav_step.kernels import cuda_module
from code2wav_step.kernels.cuda_form import CudaForm
from code2wav_step.kernels.kernel_path import CHOICE_VARIABLE, GENERAL, kernel_path
from code2wav_step.step import Step
from code2wav_step.weights import StepWeights
from export.forms import python_form
from export.modules.codec import CodecStep
from export.tensorrt.launches import Launch, RecordingOps, call_inputs, decode
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import codec_decoder_shapes
from scripts.synthetic.configs import CODEC_DECODER
from tests.fakes.every_gpu.gpus import Gpu
from tests.fakes.every_gpu.kernels import CudaKernel, Kernel, triton_kernel

META = torch.device("meta")


def kernels(gpu: Gpu) -> Iterator[Kernel]:
    """Includes the general path's where the GPU has another, and the plugin's, which opens rows on the device."""
    path = kernel_path((gpu.major, gpu.minor))
    for choice in dict.fromkeys((path, GENERAL)):
        with gpu.current(), patch.dict(os.environ, {CHOICE_VARIABLE: choice.name}):
            yield from [_kernel(launch) for launch in _launches()]


def _kernel(launch: Launch) -> Kernel:
    form = launch.kernel
    if not isinstance(form, CudaForm):
        return triton_kernel(form, launch.arguments, launch.options)
    source = cuda_module.FOLDER / form.source
    return CudaKernel(source, form.function, form.macros, form.threads, form.shared_bytes)


def _launches() -> Iterator[Launch]:
    contract = _weights().config.contract
    # Every second shape has the forms of all.
    for shape in Buckets(contract.max_batch, contract.max_frames).shapes[::2]:
        yield from _graph(shape)
    ops = RecordingOps(_weights())
    decode(_weights(), ops, call_inputs(_weights(), 1, 1))
    yield from ops.launches


@torch.inference_mode()
def _graph(shape: BatchShape) -> list[Launch]:
    weights = _weights()
    ops = RecordingOps(weights)
    rows, frames = shape
    ops.address_states(torch.empty(2, rows, dtype=torch.int64, device=META))
    dtypes = (torch.int32, torch.float16, torch.int32)
    shapes = ((rows, frames, weights.config.num_quantizers), (rows, weights.config.state_size), (rows, 1))
    inputs = (torch.empty(shape, dtype=dtype, device=META) for shape, dtype in zip(shapes, dtypes, strict=True))
    waveform, _ = Step(weights, ops)(*inputs)
    ops.to_int16(waveform)
    return ops.launches


@cache
def _weights() -> StepWeights:
    config = CodecDecoderConfig.model_validate(CODEC_DECODER)
    with META:
        tensors = {name: torch.empty(shape) for name, shape in codec_decoder_shapes(config).items()}
        step = CodecStep(config, tensors, torch.float32)
        return step_weights.assemble(python_form.step_config(config), python_form.folded(step), torch.float16)
