"""A minimal decoupled model for Triton's race between a cancel and the end of a stream; see tests/flood/__main__.py."""

import os
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
POLL_SECONDS, SETTLE_SECONDS, TICK_SECONDS = (
    float(os.environ[f"FLOOD_{name}_SECONDS"]) for name in ("POLL", "SETTLE", "TICK")
)
PCM = np.zeros(1920, np.int16)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.streams: list[list[Any]] = []
        threading.Thread(target=self.run, daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "count").as_numpy()[0])
            if count:
                self.streams.append([sender, count, time.monotonic() + POLL_SECONDS])
            else:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("refused")), flags=FINAL)

    def run(self) -> None:
        ends: list[tuple[Any, float]] = []
        while True:
            time.sleep(TICK_SECONDS)
            now = time.monotonic()
            for stream in list(self.streams):
                sender, count, poll = stream
                gone = now >= poll and sender.is_cancelled()
                stream[1:] = count - 1, now + POLL_SECONDS if now >= poll else poll
                if gone or not count:
                    self.streams.remove(stream)
                    ends.append((sender, now + SETTLE_SECONDS if gone else now))
                else:
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("pcm", PCM)]))
            while ends and ends[0][1] <= now:
                ends.pop(0)[0].send(flags=FINAL)
