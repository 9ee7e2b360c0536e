"""The CPU runner: each tick runs two ONNX graphs, built from the loaded weights, by ONNX Runtime."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.config import CpuWeights
from qwen3_tts_engine.talker import sampling
from qwen3_tts_engine.talker.onnx_programs import frame_graph, talker_graph
from qwen3_tts_engine.talker.ops.interface import Hidden, Rows
from qwen3_tts_engine.talker.ops.torch_ops import TorchRows
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
        data = self.cache.data
        self._stored = data.flatten(0, 1)
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
            positions = torch.arange(start, start + len(padded))
            last = self._run_talker(torch.tensor([slot]), padded, positions[None])[count - 1]
            start += count
        return last

    def _frame(self, slots: Tensor, *, tracked: bool = False) -> Tensor:
        rows = self._ops.rows(self._state, slots)
        hidden = self._run_talker(slots, rows.hidden, rows.positions[:, None], tracked=tracked)
        return self._complete(rows, Hidden(hidden))

    def _run_talker(self, slots: Tensor, rows: Tensor, positions: Tensor, *, tracked: bool = False) -> Tensor:
        """The talker's last state [B·N, H] of rows [B·N, H] at consecutive positions int64 [B, N] of slots [B].

        `tracked`, of frames: some slots have word times.
        """
        index = self._cache_rows(slots, int(positions.max()) + 1)
        inputs = {"rows": rows.numpy(), "positions": positions.numpy(), "index": index.numpy(), **self._pools}
        outputs = ("hidden", "stored", *(("queries",) if tracked else ()))
        hidden, stored, *queries = self._talker_program.run(outputs, inputs)
        self._stored[:, index.gather(1, positions)] = stored.unflatten(3, self._stored.shape[2:])
        if tracked:
            tracking = self._track(slots, positions[:, 0])
            assert isinstance(tracking, TorchTracking)
            for number, query in enumerate(queries[0]):
                tracking.observe_head(number, query[:, 0])
            tracking.finish()
        return hidden

    def _cache_rows(self, slots: Tensor, longest: int) -> Tensor:
        """The place in the cache of each position of slots, at least the first `longest`, int64 [slots, positions]."""
        table, size = self.cache.page_table, self.cache.page_size
        positions = torch.arange(-(-longest // POSITIONS) * POSITIONS)
        pages = (positions // size).clamp(max=table.shape[1] - 1)
        return table[slots][:, pages] * size + positions % size

    def _complete(self, rows: Rows, hidden: Hidden) -> Tensor:
        assert isinstance(rows, TorchRows)
        [codes] = self._frame_program.run(("codes",), {"hidden": hidden.rows.numpy(), **self._drawing(rows)})
        rows.keep(codes)
        rows.advance(self._talker.text_table, self._talker.code_table, self._pad_text_id)
        return rows.codes

    def _drawing(self, rows: TorchRows) -> dict[str, Any]:
        """Inputs of the frame's graph: what its draws depend on."""
        others = (rows.others.temperature == 0)[:, None].expand(-1, self._state.num_codebooks - 1)
        greedy = torch.cat([(rows.first.temperature == 0)[:, None], others], dim=1)
        end_bias = torch.where(rows.frame < sampling.MIN_NEW_TOKENS, -torch.inf, 0.0)
        places = np.arange(self._state.num_codebooks)
        num_codes = self._state.seen.shape[1]
        return {
            "seen": self._state.seen[rows.slots].numpy(),
            "penalty": rows.penalty[:, None].numpy(),
            "end_bias": end_bias[:, None].numpy(),
            "uniform": rows.uniform.masked_fill(greedy, 0.0).numpy(),
            "places": np.broadcast_to(places, (len(rows.slots), len(places))),
            **_draws("first", rows.first, num_codes + 1),
            **_draws("others", rows.others, num_codes),
        }


def _draws(kind: str, parameters: sampling.DrawParameters, num_codes: int) -> dict[str, Any]:
    """Inputs of onnx_programs.Draw."""
    candidates = min(parameters.num_candidates or num_codes, num_codes)
    top_k = torch.where(parameters.top_k > 0, parameters.top_k, candidates).clamp(max=candidates)
    temperature = torch.where(parameters.temperature == 0, 1.0, parameters.temperature)
    top_p = torch.where(parameters.top_p < 1, parameters.top_p, torch.inf)
    values = {"last": top_k - 1, "temperature": temperature, "top_p": top_p}
    columns = {f"{kind}_{name}": value[:, None].numpy() for name, value in values.items()}
    return {f"{kind}_candidates": np.array([candidates]), **columns}
