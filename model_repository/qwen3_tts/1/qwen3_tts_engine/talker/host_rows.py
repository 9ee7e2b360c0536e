"""The rows of a CPU's tick in NumPy, which takes a fifth of PyTorch's time for an operation on a few of them."""

import numpy as np

from qwen3_tts_engine.talker.sampling import GOLDEN_GAMMA, MIN_CANDIDATES, MIN_NEW_TOKENS, MIX_1, MIX_2
from qwen3_tts_engine.talker.slot_state import NUM_OPTIONS, SlotState

PENALTY = 3
# Temperature, top_k and top_p of codebook 0, and of the others, in a slot's options.
FIRST, OTHERS = slice(0, PENALTY), slice(PENALTY + 1, NUM_OPTIONS)
INFINITY = np.float32(np.inf)


class HostState:
    """A SlotState on a CPU as arrays in the same memory."""

    def __init__(self, state: SlotState) -> None:
        self.input, self.seen, self.seed = state.input.numpy(), state.seen.numpy(), state.seed.numpy()
        self.position, self.frame = state.position.numpy(), state.frame.numpy()
        self.options, self.page_table = state.options.numpy(), state.page_table.numpy()
        self.trailing, self.num_trailing = state.trailing.numpy(), state.num_trailing.numpy()
        self.num_codebooks, self.num_codes = state.num_codebooks, self.seen.shape[1]
        self.eos, self.padding_slot = state.eos, state.padding_slot


class HostRows:
    def __init__(self, state: HostState, slots: np.ndarray) -> None:
        """`slots` int64 [rows]; `hidden` is the talker's input [rows, H], `positions` int64 [rows]."""
        self.slots, self._state = slots, state
        self.hidden, self.positions = state.input[slots], state.position[slots]
        self._frame, self._options = state.frame[slots], state.options[slots].astype(np.float32)

    def drawing(self) -> dict[str, np.ndarray]:
        """Inputs of the frame's graph: what its draws depend on."""
        state, count = self._state, self._state.num_codebooks
        temperature = self._options[:, [0, *[PENALTY + 1] * (count - 1)]]
        uniform = uniforms(state.seed[self.slots], self._frame, count)
        return {
            "seen": state.seen[self.slots],
            "penalty": self._options[:, PENALTY, None],
            "end_bias": np.where(self._frame < MIN_NEW_TOKENS, -INFINITY, np.float32(0))[:, None],
            "uniform": np.where(temperature == 0, np.float32(0), uniform),
            "places": np.broadcast_to(np.arange(count), uniform.shape),
            **_draws("first", self._options[:, FIRST], state.num_codes + 1),
            **_draws("others", self._options[:, OTHERS], state.num_codes),
        }

    def keep(self, codes: np.ndarray) -> None:
        """Marks drawn codes, int64 [rows, codebooks], as seen; the first id beyond them becomes the end's."""
        state, first = self._state, codes[:, 0]
        state.seen[self.slots, np.minimum(first, state.num_codes - 1)] = True
        first[first == state.num_codes] = state.eos

    def text(self, pad_text_id: int) -> np.ndarray:
        """The text ids that are fed with the frame, int64 [rows]."""
        state = self._state
        fed = state.trailing[self.slots, np.minimum(self._frame, state.trailing.shape[1] - 1)]
        return np.where(self._frame < state.num_trailing[self.slots], fed, pad_text_id)

    def advance(self, fed: np.ndarray) -> None:
        """Writes each frame's feedback [rows, H] to its slot's input; the padding slot stays at position 0."""
        state, moves = self._state, self.slots != self._state.padding_slot
        state.input[self.slots] = fed
        state.frame[self.slots] += moves
        state.position[self.slots] += moves


def uniforms(seed: np.ndarray, frame: np.ndarray, num_codebooks: int) -> np.ndarray:
    """As sampling.uniforms."""
    counter = frame[:, None] * num_codebooks + np.arange(1, num_codebooks + 1)
    x = seed[:, None].view(np.uint64) + counter.view(np.uint64) * np.uint64(GOLDEN_GAMMA)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2)
    x ^= x >> np.uint64(31)
    numbers: np.ndarray = (x >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return numbers


def _draws(kind: str, options: np.ndarray, num_codes: int) -> dict[str, np.ndarray]:
    """Inputs of onnx_programs.Draw, from temperature, top_k and top_p [rows, 3]."""
    temperature, top_k, top_p = options.T[:, :, None]
    largest = max(MIN_CANDIDATES, int(top_k.max())) if top_k.all() else num_codes
    candidates = min(largest, num_codes)
    kept = np.where(top_k > 0, np.minimum(top_k, candidates), candidates)
    return {
        f"{kind}_candidates": np.array([candidates]),
        f"{kind}_last": kept.astype(np.int64) - 1,
        f"{kind}_temperature": np.where(temperature == 0, np.float32(1), temperature),
        f"{kind}_top_p": np.where(top_p < 1, top_p, INFINITY),
    }
