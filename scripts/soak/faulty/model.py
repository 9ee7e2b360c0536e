"""The model with faulty_service.py; scripts.soak keeps the real one as real_model.py."""

from faulty_service import FaultyService
from real_model import TritonPythonModel as RealModel


class TritonPythonModel(RealModel):
    service = FaultyService
