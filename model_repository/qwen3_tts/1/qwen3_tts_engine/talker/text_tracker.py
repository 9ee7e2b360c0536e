"""Which text token each slot speaks, from the attention of the heads that follow the text (docs/word-times.md)."""

import torch

from qwen3_tts_engine.checkpoint.alignment import LAYOUTS, Alignment

# Attention that is spread over all tokens, so that no observation excludes one.
FLOOR = 0.01
# Tokens are summed in blocks of so many on a CPU, so that a row does not depend on the longest text beside it.
BLOCK = 64


class TextTracker:
    """A forward filter: a probability for each text token of each slot.

    Layouts are numbered from 1, as in SlotState.text. `heads` are layer and head, of all layouts, in order of layers;
    `shares` float32 [layouts + 1, heads] is each head's share of a layout's mean, `moves` float32 [layouts + 1, steps]
    the probability that a frame moves on by 0, 1, ... tokens, `probability` float32 [slots, tokens]. `layers` has
    `of_layer` of the layers with heads, int64 [heads of the layer, 2].
    """

    def __init__(self, alignment: Alignment, num_slots: int, max_tokens: int, device: torch.device) -> None:
        chosen = alignment.layouts
        self.heads = sorted({head for layout in chosen.values() for head in layout.heads})
        steps = max(len(layout.advance) for layout in chosen.values())
        shares, moves = torch.zeros(len(LAYOUTS) + 1, len(self.heads)), torch.zeros(len(LAYOUTS) + 1, steps)
        for number, name in enumerate(LAYOUTS, start=1):
            if layout := chosen.get(name):
                shares[number, [self.heads.index(head) for head in layout.heads]] = 1 / len(layout.heads)
                moves[number, : len(layout.advance)] = torch.tensor(layout.advance)
        self.shares, self.moves = shares.to(device), moves.to(device)
        self.probability = torch.zeros(num_slots, -(-max_tokens // BLOCK) * BLOCK, device=device)
        self.layers = {
            layer: torch.tensor(self.of_layer(layer), device=device) for layer in sorted({of for of, _ in self.heads})
        }

    @property
    def max_tokens(self) -> int:
        return self.probability.shape[1]

    def of_layer(self, layer: int) -> list[tuple[int, int]]:
        """Index in `heads` and head of those of a layer."""
        return [(index, head) for index, (of, head) in enumerate(self.heads) if of == layer]
