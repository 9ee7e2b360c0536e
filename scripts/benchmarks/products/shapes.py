"""The matrix products of a tick of a 1.7B checkpoint; `p` is the code predictor, `t` the talker."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """What skinny_linear.cu and cluster_linear.cu compute with these macros."""

    outputs: int
    inputs: int
    norm: bool = False
    gated: bool = False
    residual: bool = False
    bias: bool = False
    float_out: bool = False

    @property
    def height(self) -> int:
        """Rows of weights."""
        return self.outputs * (1 + self.gated)

    @property
    def flags(self) -> dict[str, int]:
        return {name.upper(): int(getattr(self, name)) for name in ("norm", "gated", "residual", "bias", "float_out")}


PRODUCTS = {
    "p.qkv": Product(4096, 1024, norm=True),
    "p.out": Product(1024, 2048, residual=True),
    "p.gate": Product(3072, 1024, norm=True, gated=True),
    "p.down": Product(1024, 3072, residual=True),
    "p.head": Product(2048, 1024, norm=True, float_out=True),
    "t.qkv": Product(4096, 2048, norm=True),
    "t.out": Product(2048, 2048, residual=True),
    "t.gate": Product(6144, 2048, norm=True, gated=True),
    "t.down": Product(2048, 6144, residual=True),
    "t.head": Product(3072, 2048, norm=True, float_out=True),
    "project": Product(1024, 2048, norm=True, bias=True),
}
