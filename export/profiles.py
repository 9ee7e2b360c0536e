"""Optimisation profiles, the shapes that a TensorRT plan is built for; in any Python, without PyTorch or NumPy."""

from collections.abc import Sequence

# By input.
Shapes = dict[str, list[int]]
# The smallest, the commonest and the largest shape of each input.
Profile = dict[str, list[list[int]]]


def profile(*shapes: Shapes) -> Profile:
    """From the smallest, the commonest and the largest shapes of all inputs."""
    return {name: [sizes[name] for sizes in shapes] for name in shapes[0]}


def find(profiles: Sequence[Profile], shapes: Shapes) -> int | None:
    """The first profile that takes these shapes; None where a plan refuses them."""
    return next((i for i, profile in enumerate(profiles) if _takes(profile, shapes)), None)


def describe(shapes: Shapes) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _takes(profile: Profile, shapes: Shapes) -> bool:
    return all(
        all(low <= size <= high for low, size, high in zip(smallest, shapes[name], largest, strict=True))
        for name, (smallest, *_, largest) in profile.items()
    )
