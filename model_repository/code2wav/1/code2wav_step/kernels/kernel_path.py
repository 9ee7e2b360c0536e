"""Which kernels a GPU runs, by its compute capability."""

from dataclasses import dataclass

CHOICE_VARIABLE = "QWEN3_TTS_KERNEL_PATH"


@dataclass(frozen=True)
class KernelPath:
    name: str
    overlaps: bool
    """Whether a kernel may start before the previous one ends (programmatic dependent launch; the sources wait)."""


GENERAL = KernelPath("general", overlaps=False)
HOPPER = KernelPath("hopper", overlaps=True)
# GPUs with kernels of their own, here those with wgmma; all others, newer ones too, take the general path.
PATHS = {(9, 0): HOPPER}


def kernel_path(capability: tuple[int, int], choice: str = "auto") -> KernelPath:
    """The path of a GPU; `choice` is the setting kernel_path: auto or general."""
    return GENERAL if choice == GENERAL.name else PATHS.get(capability, GENERAL)
