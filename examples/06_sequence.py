"""Learn a tune without backpropagation, go on with it, and read the machine that was learned from the weights."""

import torch

from torchpfc import NMFRNN
from torchpfc.interpret import transition_graph
from torchpfc.nn import SliceBySlice

notes = "CDECCDECEFGEFG"  # what follows a C, an E or a G depends on more than the last note
names = sorted(set(notes))
tune = torch.tensor([names.index(note) for note in notes + notes[0]])  # ends where it began: it goes round

rnn = NMFRNN(len(names), num_basis=40, rate_h=1.0, threshold=4e-3, generator=torch.Generator().manual_seed(0))
rnn.inference = SliceBySlice(40)
rnn.fit(tune, passes=100, periodic=True)
# The threshold left few columns in use; for the last passes nothing holds the weights back.
rnn.threshold, rnn.normalization, rnn.inference = 0.0, None, SliceBySlice(80)
losses = rnn.fit(tune, passes=60, periodic=True)

graph = transition_graph(rnn)
print(f"mean squared error {losses.y[-1]:.1e}; {len(graph.states)} of {rnn.num_basis} columns are in use")

heard = tune[:6]
played = rnn.generate(heard, 22).argmax(-1).tolist()
print("heard ", "".join(names[note] for note in heard.tolist()))
print("played", "".join(names[note] for note in played))

print("each column in use is a state: the note that it reads, and the one that comes next")
for state in graph.states:
    before = [edge.source for edge in graph.transitions if edge.target == state.column]
    print(f"  column {state.column:2} after {before}: {names[state.reads]} -> {names[state.predicts]}")
