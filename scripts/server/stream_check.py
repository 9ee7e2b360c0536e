"""Ends a tritonserver whose gRPC streams hang while its health reports ready.

    python -m scripts.server.stream_check --port 8001 --process 4711

Every few seconds it sends a request to itself, which the model answers at once, whatever its load. When one gets no
answer several more are sent, and when one of those gets none either, the process gets SIGALRM (tritonserver handles
SIGUSR2 itself): a machine that sleeps or is busy answers late, but answers. Any other outcome than none, a refused
connection for example, is an answer. The launcher (supervisor.py) runs it beside tritonserver.
"""

import argparse
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODEL = "qwen3_tts"
# On two cores with ten runnable processes, 22 899 requests beside 48 streams were answered within 0.08 s.
INTERVAL_SECONDS, DEADLINE_SECONDS = 5.0, 5.0
# Triton spreads streams over two threads; of so many some reach one that hangs.
STREAMS = 8
NO_PROXY = (("grpc.enable_http_proxy", 0),)


def check(stub: service_pb2_grpc.GRPCInferenceServiceStub, seconds: float) -> bool:
    """Whether a stream is answered within `seconds`."""
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.inputs.add(name="operation", datatype="BYTES", shape=[1])
    content = b"check"
    request.raw_input_contents.append(len(content).to_bytes(4, "little") + content)
    call = stub.ModelStreamInfer(iter([request]), timeout=seconds)
    try:
        # Read to the end, since a stream that is left open delays tritonserver's end.
        for _ in call:
            pass
    except grpc.RpcError as error:
        return bool(error.code() != grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


def hangs(port: int, streams: int, seconds: float) -> bool:
    """Whether one of `streams` gets no answer within `seconds`."""
    with grpc.insecure_channel(f"localhost:{port}", NO_PROXY) as channel, ThreadPoolExecutor(streams) as pool:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return not all(pool.map(lambda _: check(stub, seconds), range(streams)))


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="End a tritonserver whose streams hang.")
    parser.add_argument("--port", type=int, default=8001, help="of gRPC")
    parser.add_argument("--process", type=int, required=True, help="tritonserver")
    parser.add_argument("--interval", type=float, default=INTERVAL_SECONDS, help="seconds between checks")
    parser.add_argument("--deadline", type=float, default=DEADLINE_SECONDS, help="seconds until an answer")
    options = parser.parse_args()
    while is_alive(options.process):
        time.sleep(options.interval)
        if hangs(options.port, 1, options.deadline) and hangs(options.port, STREAMS, options.deadline):
            message = f"streams get no answer within {options.deadline:g} s; ending tritonserver with SIGALRM"
            print(f"stream check: {message}", file=sys.stderr, flush=True)
            os.kill(options.process, signal.SIGALRM)
            return


if __name__ == "__main__":
    main()
