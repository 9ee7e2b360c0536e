import torch

from scripts.demo_voice.stepping import adam, load_optimizer, set_rate


def test_a_loaded_optimizer_keeps_its_rate_tensor() -> None:
    """A captured step reads the rate at the tensor's address."""
    device = torch.device("cpu")
    saved, fresh = (adam([{"params": [torch.nn.Parameter(torch.ones(2))]}], (0.9, 0.99), device) for _ in range(2))
    set_rate(saved, 0.5)
    rate = fresh.param_groups[0]["lr"]
    load_optimizer(fresh, saved.state_dict())
    set_rate(fresh, 0.25)
    assert fresh.param_groups[0]["lr"] is rate
    assert rate == 0.25
