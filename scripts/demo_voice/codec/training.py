"""A step of the codec's training: without codebooks, with them, against adversaries, the decoder alone."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.demo_voice import snapshots
from scripts.demo_voice.audio_buffer import AudioBuffer
from scripts.demo_voice.codec.adversary import Adversary, fooling_loss, judging_loss, matching_loss
from scripts.demo_voice.codec.calibration import calibrate
from scripts.demo_voice.codec.decoder import Decoder
from scripts.demo_voice.codec.encoder import Encoder
from scripts.demo_voice.codec.losses import SpectralLoss
from scripts.demo_voice.codec.quantizer import Quantized
from scripts.demo_voice.flite import PHONES
from scripts.demo_voice.sizes import ACTIVE, FRAME, Sizes
from scripts.demo_voice.stepping import (
    Averages,
    Metrics,
    Step,
    adam,
    half_precision,
    load_optimizer,
    set_rate,
    update,
)

SNAPSHOT, FROZEN = "codec.pt", "codec_frozen.pt"
LEARNING_RATE, BETAS, DECAY, NORM_LIMIT = 8e-4, (0.8, 0.99), 0.999, 20.0
JUDGE_RATE, RATE_WARM_UP = 0.5, 200
SPECTRAL, COMMITMENT, PHONE, FOOLING, MATCHING = 15.0, 0.25, 5.0, 1.0, 4.0
JUDGED_FRAMES = 12


class CodecModel(nn.Module):
    """Everything that learns, without the adversary."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(sizes.encoder), Decoder(sizes.decoder, ACTIVE)
        self.phones = nn.Linear(sizes.decoder["codebook_dim"] // 2, 3 * len(PHONES))

    def sounding(self) -> list[nn.Parameter]:
        return [p for name, p in self.decoder.named_parameters() if not name.startswith("quantizer")]

    def coding(self) -> list[nn.Parameter]:
        return [*self.encoder.parameters(), *self.decoder.quantizer.parameters(), *self.phones.parameters()]


class CodecTraining:
    def __init__(self, sizes: Sizes, buffer: AudioBuffer, device: torch.device) -> None:
        self.device, self._buffer = device, buffer
        self.model, self.adversary = CodecModel(sizes).to(device), Adversary().to(device)
        self._spectral = SpectralLoss().to(device)
        self._sounding, self._coding, self._judging = (
            adam([{"params": parameters, "weight_decay": 1e-3}], BETAS, device)
            for parameters in (self.model.sounding(), self.model.coding(), list(self.adversary.parameters()))
        )
        self.averages = Averages(self.model.sounding(), DECAY)
        self.step, self.phase = 0, "unquantized"
        self._step: Step | None = None

    def enter(self, phase: str) -> None:
        """unquantized, quantized, adversarial, frozen"""
        if phase == self.phase and self._step is not None:
            return
        if phase in ("quantized", "adversarial") and self.phase == "unquantized":
            self._begin_codebooks()
        self.phase, self._step = phase, None

    def set_rates(self, coding: float, sounding: float) -> None:
        """Shares of the largest rates."""
        warm = min(1.0, (self.step + 1) / RATE_WARM_UP)
        set_rate(self._coding, LEARNING_RATE * warm * coding)
        set_rate(self._sounding, LEARNING_RATE * warm * sounding)
        set_rate(self._judging, LEARNING_RATE * JUDGE_RATE * sounding)

    def take(self, positions: Tensor) -> Metrics:
        if self._step is None:
            self._step = Step(self._run, positions.to(self.device))
        metrics = self._step(positions)
        self.step += 1
        self.averages.update(self.step)
        return metrics

    def calibrate(self, positions: Tensor) -> None:
        calibrate(self.model.encoder, self.model.decoder, self._buffer.crops(positions.to(self.device))[0])
        self.averages.load([p.data for p in self.model.sounding()])

    @torch.no_grad()
    def check(self, samples: Tensor, phones: Tensor) -> str:
        """Spectral loss by number of codebooks, phones right and entries used, on held-out sound with averages."""
        model = self.model
        with self.averages:
            z = model.encoder(samples)
            codes = model.decoder.quantizer.encode(z.flatten(0, 1))
            losses = [self._loss_with(codes, count, samples) for count in (ACTIVE, 4, 2, 1)]
        heard = model.phones(model.decoder.quantizer.rvq_first.entries_of(codes[:, :1]))
        right = (heard.unflatten(1, (3, -1)).argmax(2) == phones.flatten(0, 1)).float().mean()
        used = [int(codes[:, i].unique().numel()) for i in range(codes.shape[1])]
        return f"spectral {' '.join(f'{loss:.3f}' for loss in losses)}, phones {right:.3f}, entries {used}"

    def state(self, spent: float) -> snapshots.State:
        names = [name for name, _ in self.model.decoder.named_parameters() if not name.startswith("quantizer")]
        averaged = {f"decoder.{name}": value for name, value in zip(names, self.averages.values, strict=True)}
        optimizers = [optimizer.state_dict() for optimizer in (self._sounding, self._coding, self._judging)]
        return {
            "spent": spent,
            "step": self.step,
            "phase": self.phase,
            "model": self.model.state_dict(),
            "adversary": self.adversary.state_dict(),
            "averages": {"model": averaged},
            "optimizers": optimizers,
        }

    def load(self, state: snapshots.State) -> None:
        self.model.load_state_dict(state["model"])
        self.adversary.load_state_dict(state["adversary"])
        self.step, self.phase = state["step"], state["phase"]
        self.averages.load([p.data for p in self.model.sounding()])
        if "optimizers" not in state:
            self.step = 0  # rates rise again while the optimisers find their scales
            return
        self.averages.load(list(state["averages"]["model"].values()))
        for optimizer, own in zip((self._sounding, self._coding, self._judging), state["optimizers"], strict=True):
            load_optimizer(optimizer, own)

    def _run(self, positions: Tensor) -> Metrics:
        samples, phones = self._buffer.crops(positions)
        quantized, copied = self._copy(samples)
        spectral = self._spectral(copied, samples)
        loss, metrics = SPECTRAL * spectral, {"spectral": spectral.detach()}
        if self.phase != "frozen":
            phone = self._phone_loss(quantized, phones)
            loss = loss + COMMITMENT * quantized.commitment + PHONE * phone
            metrics |= {"commitment": quantized.commitment.detach(), "phone": phone.detach()}
        if self.phase in ("adversarial", "frozen"):
            adversarial, more = self._adversarial(samples, copied)
            loss, metrics = loss + adversarial, metrics | more
        optimizers = (self._sounding,) if self.phase == "frozen" else (self._sounding, self._coding)
        return metrics | {"norm": update(optimizers, loss, NORM_LIMIT)}

    def _copy(self, samples: Tensor) -> tuple[Quantized, Tensor]:
        frozen = self.phase == "frozen"
        quantizer = self.model.decoder.quantizer
        with half_precision(self.device), torch.set_grad_enabled(not frozen):
            z = self.model.encoder(samples).flatten(0, 1)
            if self.phase == "unquantized":
                quantized = quantizer.unquantized(z)
            else:
                quantized = quantizer(z, self._counts(len(samples), len(z) // len(samples)), learn=not frozen)
        with half_precision(self.device):
            return quantized, self.model.decoder.sound(quantized.vectors.unflatten(0, (len(samples), -1)))

    def _counts(self, crops: int, frames: int) -> Tensor:
        """Half of the crops sound with all codebooks, the others with fewer, unless the codebooks are fixed."""
        counts = torch.full((crops,), ACTIVE - 1, device=self.device)
        if self.phase != "frozen":
            fewer = torch.randint(0, ACTIVE, (crops,), device=self.device)
            counts = torch.where(torch.rand(crops, device=self.device) < 0.5, fewer, counts)
        return counts.repeat_interleave(frames)

    def _phone_loss(self, quantized: Quantized, phones: Tensor) -> Tensor:
        with half_precision(self.device):
            logits = self.model.phones(quantized.phones)
        return functional.cross_entropy(logits.float().view(-1, len(PHONES)), phones.flatten())

    def _adversarial(self, samples: Tensor, copied: Tensor) -> tuple[Tensor, Metrics]:
        real, copy = (sound[:, -JUDGED_FRAMES * FRAME :] for sound in (samples, copied))
        with half_precision(self.device):
            judging = judging_loss(self.adversary(real), self.adversary(copy.detach()))
        update((self._judging,), judging, NORM_LIMIT)
        self.adversary.requires_grad_(False)
        with half_precision(self.device):
            judged, expected = self.adversary(copy), self.adversary(real)
        self.adversary.requires_grad_(True)
        fooling, matching = fooling_loss(judged), matching_loss(expected, judged)
        metrics = {"judging": judging.detach(), "fooling": fooling.detach(), "matching": matching.detach()}
        return FOOLING * fooling + MATCHING * matching, metrics

    def _begin_codebooks(self) -> None:
        with torch.no_grad():
            samples, _ = self._buffer.crops(self._buffer.positions(64, 0).to(self.device))
            self.model.decoder.quantizer.begin(self.model.encoder(samples).flatten(0, 1))

    def _loss_with(self, codes: Tensor, count: int, samples: Tensor) -> float:
        vectors = self.model.decoder.quantizer.decode(codes, count)
        copied = self.model.decoder.sound(vectors.unflatten(0, (len(samples), -1)))
        return float(self._spectral(copied, samples))
