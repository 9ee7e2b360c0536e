"""Configuration of the step, stored in the metadata of model.safetensors."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

METADATA = "code2wav"
KEYS, VALUES = "keys", "values"


@dataclass(frozen=True)
class Piece:
    """A named part of the state vector: `size` elements from `offset`, stored flat in `shape`."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Contract:
    """Tensor names, limits and PCM format, which the exporter copies from qwen3_tts_engine/codec/contract.py."""

    codes: str
    places: str
    pcm: str
    num_rows: int
    public_rows: int
    line: str
    line_memory: str
    note_memory: str
    max_frames: int
    max_batch: int
    pcm_scale: int
    no_sample: int


@dataclass(frozen=True)
class StepConfig:
    """Dimensions of the codec decoder; `layout` names the pieces of the state and their shapes, in order."""

    contract: Contract
    codebook_size: int
    num_quantizers: int
    num_layers: int
    num_heads: int
    head_dim: int
    window: int  # past frames that the transformer sees
    rope_theta: float
    rms_norm_eps: float
    conv_kernel: int
    pre_conv_kernel: int
    residual_dilations: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]
    layout: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def from_metadata(cls, metadata: dict[str, str] | None) -> "StepConfig":
        """Raises ValueError if this is not the metadata of an exported step."""
        try:
            fields: dict[str, Any] = json.loads((metadata or {})[METADATA])
            fields["layout"] = tuple((name, tuple(shape)) for name, shape in fields["layout"])
            fields["contract"] = Contract(**fields["contract"])
            for name in ("residual_dilations", "upsampling_ratios", "upsample_rates"):
                fields[name] = tuple(fields[name])
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"not an exported code2wav step of this version: {error!r}; run `python -m export` again"
            ) from None

    def to_metadata(self) -> dict[str, str]:
        return {METADATA: json.dumps(asdict(self))}

    @property
    def pieces(self) -> dict[str, Piece]:
        offset, pieces = 0, {}
        for name, shape in self.layout:
            pieces[name] = Piece(name, shape, offset)
            offset += pieces[name].size
        return pieces

    @property
    def slots(self) -> int:
        """Positions that one call attends to: the window, then the new frames."""
        return self.window + self.contract.max_frames

    @property
    def state_size(self) -> int:
        return sum(math.prod(shape) for _, shape in self.layout)

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.upsampling_ratios + self.upsample_rates)

    @property
    def positions(self) -> dict[str, int]:
        """Positions that a frame adds to the input of each causal convolution."""
        positions, count = {"pre_conv": 1}, 1
        for i, ratio in enumerate(self.upsampling_ratios):
            count *= ratio
            positions[f"upsample.{i}"] = count
        positions["decoder.0"] = count
        for block, rate in enumerate(self.upsample_rates, start=1):
            positions[f"decoder.{block}.transposed"] = count
            count *= rate
            positions |= {f"decoder.{block}.residual.{i}": count for i in range(len(self.residual_dilations))}
        return positions | {"decoder.final": count}
