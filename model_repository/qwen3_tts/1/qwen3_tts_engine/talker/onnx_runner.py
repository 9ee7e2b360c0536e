"""The CPU runner: each tick runs two ONNX graphs, built from the loaded weights, by ONNX Runtime."""

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.config import CpuWeights
from qwen3_tts_engine.talker.host_rows import HostRows, HostState
from qwen3_tts_engine.talker.onnx_programs import frame_graph, talker_graph
from qwen3_tts_engine.talker.ops.torch_tracking import TorchTracking
from qwen3_tts_engine.talker.runner import TalkerRunner

# A stream's past is attended to in multiples of so many positions, in which products and softmax sum: so a row's
# arithmetic does not depend on the longest stream of its batch.
POSITIONS = 64
# Bounds the memory of a prompt's attention.
PROMPT_ROWS = 256


class OnnxTalkerRunner(TalkerRunner):
    """A row's arithmetic does not depend on rows of other streams, so that equal seeds give equal codes."""

    has_graphs = rows_are_independent = True

    def build(self, weights: CpuWeights = "float32") -> None:
        """Raises an exception of ONNX Runtime when it lacks an operator.

        `weights` are those of products.
        """
        threads = torch.get_num_threads()
        heads = self._tracker.heads if self._tracker else ()
        self._talker_program = talker_graph(self._talker, self.cache, heads, weights).load(threads)
        self._frame_program = frame_graph(self._talker, self._predictor, self._frame_cache, weights).load(threads)
        if weights == "int8":
            # Unlike those in float32, which ONNX Runtime keeps as they are, too.
            self._talker.transformer.layers.clear()
            self._predictor.transformer.layers.clear()
            self._predictor.heads.clear()
        self._host = HostState(self._state)
        data = self.cache.data
        self._stored = data.flatten(0, 1).flatten(2).numpy()
        layers = range(len(data))
        self._pools = {
            f"{name}_{layer}": data[layer, part].flatten(1).numpy()
            for layer in layers
            for part, name in enumerate(("keys", "values"))
        }

    def _forward(self, slot: int, rows: Tensor, start: int, *, prompts: int = 0) -> Tensor:
        for part in rows.split(PROMPT_ROWS if prompts else 1):
            count = len(part)
            # The attention of a single row, as in a tick, rounds differently. Where it is the last one of a prompt, a
            # second one goes with it, to the next position, which the next frame overwrites.
            padded = part.repeat(2, 1) if prompts and count == 1 else part
            positions = np.arange(start, start + len(padded))
            last = self._run_talker(np.array([slot]), padded.numpy(), positions[None])[count - 1]
            start += count
        return torch.from_numpy(last)

    def _predict(self, slots: Tensor) -> Tensor:
        rows = HostRows(self._host, slots.numpy())
        return self._drawn(rows, rows.hidden)

    def _frame(self, slots: Tensor, *, tracked: bool = False) -> Tensor:
        rows = HostRows(self._host, slots.numpy())
        hidden = self._run_talker(rows.slots, rows.hidden, rows.positions[:, None], tracked=tracked)
        return self._drawn(rows, hidden)

    def _run_talker(
        self, slots: np.ndarray, rows: np.ndarray, positions: np.ndarray, *, tracked: bool = False
    ) -> np.ndarray:
        """The talker's last state [B·N, H] of rows [B·N, H] at consecutive positions int64 [B, N] of slots [B].

        `tracked`, of frames: some slots have word times.
        """
        index = self._cache_rows(slots, int(positions.max()) + 1)
        inputs = {"rows": rows.reshape(*positions.shape, -1), "positions": positions, "index": index, **self._pools}
        outputs = ("hidden", "stored", *(("queries",) if tracked else ()))
        hidden, stored, *queries = self._talker_program.run(outputs, inputs)
        self._stored[:, np.take_along_axis(index, positions, 1)] = stored
        if tracked:
            tracking = self._track(torch.from_numpy(slots), torch.from_numpy(positions[:, 0]))
            assert isinstance(tracking, TorchTracking)
            for number, query in enumerate(queries[0]):
                tracking.observe_head(number, torch.from_numpy(query[:, 0]))
            tracking.finish()
        return hidden.reshape(-1, hidden.shape[-1])

    def _cache_rows(self, slots: np.ndarray, longest: int) -> np.ndarray:
        """The place in the cache of each position of slots, at least the first `longest`, int64 [slots, positions]."""
        table, size = self._host.page_table, self.cache.page_size
        positions = np.arange(-(-longest // POSITIONS) * POSITIONS)
        pages = np.minimum(positions // size, table.shape[1] - 1)
        places: np.ndarray = table[slots[:, None], pages] * size + positions % size
        return places

    def _drawn(self, rows: HostRows, hidden: np.ndarray) -> Tensor:
        """The codes of a frame from the talker's last states [rows, H]."""
        [codes] = self._frame_program.run(("codes",), {"hidden": hidden, **rows.drawing()})
        rows.keep(codes)
        drawn = torch.from_numpy(codes)
        # As a prompt's frames are, for the same rounding.
        fed = self._talker.embed(torch.from_numpy(rows.text(self._pad_text_id)), drawn)
        rows.advance(fed.numpy())
        return drawn
