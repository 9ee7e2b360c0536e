"""Rates and sizes that the released codec fixes (docs/model.md, Frame)."""

SAMPLE_RATE = 24000
SAMPLES_PER_FRAME = 1920
FRAME_SECONDS = SAMPLES_PER_FRAME / SAMPLE_RATE
CODEBOOK_SIZE = 2048
NUM_CODEBOOKS = 16
