"""Optimisation profiles, the shapes that a TensorRT plan is built for; requires neither PyTorch nor NumPy."""

from collections.abc import Sequence

# Input name to shape.
Shapes = dict[str, list[int]]
# Minimum, optimum and maximum shape of each input.
Profile = dict[str, list[list[int]]]


def profile(*shapes: Shapes) -> Profile:
    """A profile of the minimum, optimum and maximum shapes of all inputs."""
    return {name: [sizes[name] for sizes in shapes] for name in shapes[0]}


def find(profiles: Sequence[Profile], shapes: Shapes) -> int | None:
    """Index of the first profile that covers these shapes; None if none does."""
    return next((i for i, profile in enumerate(profiles) if _covers(profile, shapes)), None)


def describe(shapes: Shapes) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _covers(profile: Profile, shapes: Shapes) -> bool:
    return all(
        all(low <= size <= high for low, size, high in zip(smallest, shapes[name], largest, strict=True))
        for name, (smallest, *_, largest) in profile.items()
    )
