"""Adapter between Triton and the engine; the only importer of Triton's Python API."""
