"""python -m export.tensorrt.build SOURCE PLAN: build a plan, in any Python 3.10 or later with TensorRT.

SOURCE is an ONNX file, or a .program file written by step_program, which the plugin replays.

Self-contained, since TensorRT may be in another Python than PyTorch. Progress goes to standard error, facts about the
plan to standard output as JSON.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from export.profiles import Profile
from export.tensorrt.api import (
    TensorRtError,
    configure,
    create_network,
    import_tensorrt,
    is_ahead_of_time,
    is_strongly_typed,
    save_timing_cache,
    take_standard_output,
    use_timing_cache,
)
from export.tensorrt.cuda import find_device
from export.tensorrt.step import PROGRAM_SUFFIX, add_step


def build(source: Path, plan: Path, profiles: list[Profile], level: int, cache: Path) -> dict[str, Any]:
    """Builds `plan` for any shape of the profiles; returns facts about it. Raises TensorRtError."""
    trt, device = import_tensorrt(), find_device()
    if device is None and not is_ahead_of_time(trt):
        raise TensorRtError(f"{trt.__name__} {trt.__version__} requires a GPU to build; TensorRT for RTX does not")
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = create_network(trt, builder)
    with_plugin = source.suffix == PROGRAM_SUFFIX
    if with_plugin:
        add_step(trt, network, source, profiles)
    else:
        _parse(trt, network, logger, source)
    config = configure(trt, builder, network, level, _report)
    for profile in profiles:
        config.add_optimization_profile(_optimization_profile(builder, profile))
    timings = cache / f"{trt.__name__}-{trt.__version__}-{device.name.replace(' ', '-') if device else 'any'}.timings"
    use_timing_cache(trt, config, timings)
    started = time.monotonic()
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise TensorRtError(f"{trt.__name__} {trt.__version__} could not build {source}; its messages are above")
    plan.write_bytes(memoryview(serialized))
    save_timing_cache(trt, config, timings)
    return {
        "library": trt.__name__,
        "version": trt.__version__,
        "gpu": device.name if device else None,
        "compute_capability": device.compute_capability if device else None,
        "strongly_typed": is_strongly_typed(trt),
        "plugin": with_plugin,
        "level": level,
        "layers": network.num_layers,
        "size": plan.stat().st_size,
        "build_seconds": round(time.monotonic() - started, 1),
    }


def _parse(trt: Any, network: Any, logger: Any, onnx: Path) -> None:
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx)):
        problems = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise TensorRtError(f"{trt.__name__} {trt.__version__} cannot parse {onnx}: {problems}")


def _optimization_profile(builder: Any, profile: Profile) -> Any:
    result = builder.create_optimization_profile()
    for name, (minimum, optimum, maximum) in profile.items():
        result.set_shape(name, minimum, optimum, maximum)
    return result


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("plan", type=Path)
    shapes = '[{"input": [minimum, optimum, maximum]}]'
    parser.add_argument("--profiles", type=json.loads, required=True, help=shapes)
    parser.add_argument("--level", type=int, default=3, choices=range(6), help="optimisation level")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the timing cache")
    arguments, output = parser.parse_args(), take_standard_output()
    try:
        facts = build(**vars(arguments))
    except TensorRtError as error:
        sys.exit(str(error))
    with output:
        output.write(json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    main()
