"""Take the vocals out of a song with plain NMF, and see how far that is from the best possible mask."""

import torch

from torchpfc.audio import Features, NMFSeparator, sdr, separate, separate_by_oracle
from torchpfc.paper.songs import generate_tracks

features = Features()
songs, (unknown,) = generate_tracks("train", 3, seconds=8.0), generate_tracks("test", 1, seconds=8.0)


def hear(signals: list[torch.Tensor]) -> torch.Tensor:
    """Features of all frames, one per row."""
    return torch.cat([features.of(features.analyze(signal)).flatten(0, 1) for signal in signals])


model = NMFSeparator.fit(
    hear([song.vocals for song in songs]),
    hear([song.accompaniment for song in songs]),
    num_basis=(32, 32),
    max_iter=30,
    generator=torch.Generator().manual_seed(0),
)

found = separate(unknown.mixture, model)
ceiling = separate_by_oracle(unknown.mixture, unknown.vocals)
print(f"the mixture itself:   {sdr(unknown.vocals, unknown.mixture):5.1f} dB")
print(f"separated by NMF:     {sdr(unknown.vocals, found.vocals):5.1f} dB")
print(f"best possible mask:   {sdr(unknown.vocals, ceiling.vocals):5.1f} dB")
